"""A field of JSON text as a condition, on rows of every kind."""

from __future__ import annotations

import sqlite3

from tests.support.tables import each_row

from jobledger.projections.filters import field_condition

ROWS = {
    "many": '{"a":42,"b":"42","c":{"d":["x",{"e":true}]},"1":"one","q/r":{"~":5}}',
    "text": '{"a":"true","b":"42.0"}',
    "true": '{"a":true}',
    "null": '{"a":null}',
    "one": '{"a":1}',
    "real": '{"a":42.0,"big":1e400}',
    "list": '[["z"],"42"]',
    "none": None,
    "no json": "{",
    "deep": "[" * 5_000 + "]" * 5_000,
}


@each_row(
    "field, value, fits",
    [
        ("a", "42", {"many", "real"}),
        ("a", "42.0", {"many", "real"}),
        ("b", "42", {"many"}),
        ("a", "true", {"text", "true"}),
        ("a", "null", {"null"}),
        ("a", "1", {"one"}),
        ("a", "x' OR 1", set()),
        ("/c/d/0", "x", {"many"}),
        ("/c/d/1/e", "true", {"many"}),
        ("/c/d/2", "x", set()),
        ("1", "one", {"many"}),
        ("/1", "one", {"many"}),
        ("/1", "42", {"list"}),
        ("/0/0", "z", {"list"}),
        ("/q~1r/~0", "5", {"many"}),
        ("c", "{}", set()),
    ],
)
def test_a_field_has_a_value(field: str, value: str, fits: set[str]) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE jobs (name TEXT, data TEXT)")
    database.executemany("INSERT INTO jobs VALUES (?, ?)", ROWS.items())
    sql, values = field_condition("data", field, value)
    found = {row[0] for row in database.execute(f"SELECT name FROM jobs WHERE {sql}", values)}
    database.close()
    assert found == fits
