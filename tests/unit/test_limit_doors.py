"""Each field of a limit stands at every door: code, events, overrides, command and request, table, sentences."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from jobledger.admin.verbs import limits as verbs
from jobledger.admin.verbs.kit import request_of
from jobledger.ledger import Limit
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.limits.definition import (
    LIMIT,
    LimitSet,
    Override,
    SetKey,
    SetLimit,
    Terms,
    decide,
    problem_of,
    terms_words,
)
from jobledger.ledger.model.subjects import Names
from jobledger.projections.table import CacheLimits
from jobledger.projections.tables.limits import LIMITS, LimitRows, limit_rows

FIELDS: Final = Terms.__struct_fields__
WHO: Final = ("queues", "tasks")  #: said of all keys of a limit at once
#: A value of each field that is not its default: a new field needs one here.
GIVEN: Final[dict[str, Any]] = {
    "slots": 3,
    "rate": 5.0,
    "per_s": 60.0,
    "burst": 7,
    "mode": "newest",
    "keep": "job",
    "weight": 2.5,
    "queues": ("mail",),
    "tasks": ("send", "bill-*"),
}
#: A value of each field that cannot work.
WRONG: Final[dict[str, Any]] = {
    "slots": -1,
    "rate": 0.0,
    "per_s": 0.0,
    "burst": 0,
    "mode": "wait",
    "keep": "ever",
    "weight": 0.0,
    "queues": ("a b",),
    "tasks": ("a b",),
}
STAMP: Final = Stamp(at=datetime(2026, 1, 2, tzinfo=UTC), by="alice")
NAMES: Final = Names()


def given(name: str) -> dict[str, Any]:
    """The field alone; a period and a burst mean nothing without a rate, and code defines a limit by its bound."""
    return {"slots": 1, "rate": 1.0, name: GIVEN[name]}


def rows_of(event: LimitSet) -> list[Any]:
    """The rows of the table after one event."""
    connection = sqlite3.connect(":memory:")
    LIMITS.create(connection)
    data, subject = LIMIT.encode(event), LIMIT.subject(NAMES, event)
    rows = LimitRows(connection, CacheLimits(0, 0))
    rows.apply([Message(data=data, stream_sequence=9, stored_at=event.at, subject=subject)])
    return list(limit_rows(lambda sql: connection.execute(sql).fetchall()))


def test_this_file_knows_a_good_and_a_bad_value_of_every_field() -> None:
    assert tuple(GIVEN) == tuple(WRONG) == FIELDS
    assert all(getattr(Terms(), name) != value for name, value in GIVEN.items())


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_a_person_sets_is_recorded_and_shown(name: str) -> None:
    wish = verbs.SetLimit(limit="tenant", **given(name))
    assert wish.changes == given(name)
    request = request_of(wish)
    assert msgspec.convert(request.body, dict[str, Any])[name] == msgspec.to_builtins(GIVEN[name])
    event = decide("tenant", None, SetLimit(terms=Terms(**wish.changes)), STAMP)
    assert isinstance(event, LimitSet)
    assert getattr(event, name) == GIVEN[name]
    decoded = msgspec.json.decode(LIMIT.encode(event), type=LimitSet)
    state = LIMIT.evolve(None, decoded, 9)
    assert state.of() == Terms(**given(name))
    (row,) = rows_of(event)
    assert row.terms == Terms(**given(name))
    assert msgspec.to_builtins(row)[name] == msgspec.to_builtins(GIVEN[name])


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in WHO])
def test_a_field_may_differ_for_one_key(name: str) -> None:
    override = Override(**{name: GIVEN[name]})
    event = decide("tenant", None, SetKey(key="acme", override=override), STAMP)
    state = LIMIT.evolve(None, event, 9)
    assert state.of("acme") == Terms(**{name: GIVEN[name]})
    assert isinstance(event, LimitSet)
    assert [row.terms for row in rows_of(event)] == [Terms(), Terms(**{name: GIVEN[name]})]


@pytest.mark.parametrize("name", FIELDS)
def test_code_can_say_a_field_and_a_person_reads_it(name: str) -> None:
    limit = Limit("tenant", key="tenant", **given(name))
    assert limit.terms == Terms(**given(name))
    assert terms_words(limit.terms) != terms_words(Terms(**{**given(name), name: getattr(Terms(), name)}))


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_of_a_field_that_cannot_work_is_refused(name: str) -> None:
    assert problem_of(Terms(**{name: WRONG[name]}), {})
    if name not in WHO:
        assert problem_of(Terms(), {"acme": Override(**{name: WRONG[name]})})
