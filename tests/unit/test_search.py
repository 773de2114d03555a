"""The grammar of searches: every text is a filter or one sentence, and a filter that is printed is read as the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobFilter, ProjectionConfigError, SaidFilter, parse_search, search_text
from jobledger.projections.search import AWAITS, KEYS, TEXT_MAX, pair, read_search

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

#: What is typed, and the filter that it is.
READ: dict[str, dict[str, Any]] = {
    "": {},
    "tenant:acme state:dead": {"said": SaidFilter(tenant="acme"), "states": ("dead_lettered",)},
    "owner:person:17": {"said": SaidFilter(owner="person:17")},
    "state:queued state:retry_wait": {"states": ("queued", "retry_wait")},
    "state:w state:retry": {"states": ("waiting", "retry_wait")},
    "state:fail": {"states": ("dead_lettered", "retry_wait")},
    "state:failing": {"states": ("dead_lettered", "retry_wait")},
    "State:Dead": {"states": ("dead_lettered",)},
    "since:2h until:11:00": {
        "since": time_text(NOW - timedelta(hours=2)),
        "until": time_text(NOW.replace(hour=11)),
    },
    'since:"2 min ago"': {"since": time_text(NOW - timedelta(minutes=2))},
    "since:2026-01-30": {"since": time_text(datetime(2026, 1, 30, tzinfo=UTC))},
    "meta.region=eu meta.a:b": {"said": SaidFilter(metadata=(("region", "eu"), ("a", "b")))},
    "invoice=i22 input.meta.x=1 /a/0=true": {
        "input": (("invoice", "i22"), ("meta.x", "1"), ("/a/0", "true"))
    },
    'note="" "a b"="c:d=e"': {"input": (("note", ""), ("a b", "c:d=e"))},
    "to=ann@example.com": {"input": (("to", "ann@example.com"),)},
    "url=https://x/?a=b": {"input": (("url", "https://x/?a=b"),)},
    "charge-acme": {"words": "charge-acme"},
    "card   declined": {"words": "card declined"},
    '"card   declined"': {"words": "card   declined"},
    '"https://x" is "say \\"no\\""': {"words": 'https://x is say "no"'},
    '"not closed': {"words": "not closed"},
    '"a*b"': {"words": "a*b"},
    "10:30": {"words": "10:30"},
    "C:\\x": {"words": "C:\\x"},
    "Überweisung 請求": {"words": "Überweisung 請求"},
    "abc…": {"id_prefix": "abc"},
    "id:abc": {"id_prefix": "abc"},
    "*i22": {"id_suffix": "i22"},
    "charge-…-i22": {"id_prefix": "charge-", "id_suffix": "-i22"},
    "id:a...z": {"id_prefix": "a", "id_suffix": "z"},
    "error:CardDeclined task:app.charge queue:billing": {
        "error_type": "CardDeclined",
        "task": "app.charge",
        "queue": "billing",
    },
    "run:payouts/import-7": {"run": "import-7"},
    "cause:678b01 cause:99": {"fingerprints": ("678b01", "99")},
    "by:user:ann limit:smtp:acme": {"said": SaidFilter(created_by="user:ann", limited_by="smtp:acme")},
    "batch:may correlation:c-1 awaits:signal": {
        "batch": "may",
        "said": SaidFilter(correlation="c-1"),
        "awaiting": "signal",
    },
    f"trace:00-{'AB' * 16}-{'cd' * 8}-01": {"trace_id": "ab" * 16},
    'text:"card expired" boom': {"text": "card expired", "words": "boom"},
    "tenant:acme tenant:acme": {"said": SaidFilter(tenant="acme")},
}
#: What is typed, and the sentence that it gets.
REFUSED = [
    ("tennant:acme", "there is no key tennant: (did you mean tenant:?); put it in quotes"),
    ("status:dead", "there is no key status: (did you mean state:?); put"),
    ("https://x", "there is no key https:; put it in quotes to look for it as text"),
    ("state:deed", "no state is called deed (did you mean dead?): scheduled, held, queued"),
    ("state:xyz", "no state is called xyz: scheduled, held, queued"),
    ("state:paussed", "no state is called paussed (did you mean paused?)"),
    ("state:c", "state:c may be completed or cancelled: write one of them"),
    ("since:soon", "since:soon is no time: write 2h, 30m, 7d, 16:28 or 2026-01-31"),
    ("until:9999999999999w", "until:9999999999999w is no time"),
    ("since:0001-01-01", "since:0001-01-01 is no time"),
    ("tenant:", "tenant: has no value: write tenant:acme"),
    ('error: ""', "error: has no value: write error:CardDeclined"),
    ("meta.=x", "meta. has no name: write meta.region=eu"),
    ("tenant:a tenant:b", "tenant: is given twice: leave one of them out"),
    ("since:1h since:2h task:a task:b", "task: is given twice: leave one of them out"),
    ("id:…", "id:… names no job: write the beginning of an id, or its end"),
    ("id:ab id:cd", "id: is given twice"),
    ("awaits:signl", "no run awaits signl (did you mean signal?): signal, children"),
    ("cause:xyz", "cause:xyz is no fingerprint: up to 12 hex digits"),
    ("trace:12", "trace:12 is no trace: 32 hexadecimal digits"),
    ("queue:a.b", "queue"),
    ("limit:é", "limit"),
    ('text:""', "text: has no value"),
    (f'"{"x" * 201}"', "a text to look for has 1 to 200 characters, got 201"),
    ('"a\\"b"=1', "the input field 'a\"b' cannot be looked for"),
    ("x" * (TEXT_MAX + 1), f"a search has at most {TEXT_MAX} characters, got {TEXT_MAX + 1}: leave"),
    (
        " ".join(f"a{n}=1" for n in range(11)),
        "looks at 10 fields of the input or the metadata at most: leave a10=1",
    ),
    ("tenant:\ud800", "half of a character"),
]


@each_row("text", READ)
def test_a_text_is_a_filter(text: str) -> None:
    assert parse_search(text, NOW) == JobFilter(**READ[text])


def test_every_key_is_read() -> None:
    assert {word.key for text in READ for word in read_search(text, NOW).words} >= {*KEYS}


@each_row(("text", "sentence"), REFUSED)
def test_what_is_not_understood_is_said_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ProjectionConfigError) as refused:
        parse_search(text, NOW)
    assert sentence in str(refused.value)


def test_the_rest_of_a_text_is_understood() -> None:
    found = read_search("tenant:acme stat:dead since:soon boom", NOW)
    assert found.chosen == JobFilter(said=SaidFilter(tenant="acme"), words="boom")
    assert [each.partition(" ")[0] for each in found.problems] == ["there", "since:soon"]
    assert [each.text for each in found.words] == ["tenant:acme", "stat:dead", "since:soon", "boom"]


TYPED = st.text(st.sampled_from('abz …*."\\:= \t\n\u3000\ud800é請,0-_/'), max_size=40) | st.text(
    max_size=TEXT_MAX + 9
)
PIECES = st.lists(
    st.sampled_from(
        [*(f"{key}:" for key in KEYS), "meta.a=", "b=", " ", '"', "\\", "dead", "2h", "…", "x", "signal"]
    ),
    max_size=20,
).map("".join)


@given(TYPED | PIECES)
@example('"\\')
@example('a"b c"d')
def test_every_text_is_a_filter_or_one_sentence(text: str) -> None:
    found = read_search(text, NOW)
    assert all(each.encode() and len(each) < TEXT_MAX for each in found.problems)
    assert msgspec.json.encode(found.chosen)
    printed = search_text(found.chosen)
    if len(printed) <= TEXT_MAX:  # times are longer than as they were typed
        assert parse_search(printed, NOW) == found.chosen


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
TOKEN = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
TIME = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(time_text)  # noqa: DTZ001 - as UTC
NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters='"\\\0'), min_size=1, max_size=8
).filter(lambda name: not name.startswith("/"))
HEX = st.from_regex(r"[0-9a-f]{1,12}", fullmatch=True)
FILTERS = st.builds(
    JobFilter,
    states=st.lists(st.sampled_from([each.value for each in JobState]), unique=True, max_size=3).map(tuple),
    queue=st.none() | TOKEN,
    task=st.none() | TEXT,
    since=st.none() | TIME,
    until=st.none() | TIME,
    said=st.builds(
        SaidFilter,
        tenant=st.none() | TEXT,
        correlation=st.none() | TEXT,
        metadata=st.lists(st.tuples(TEXT, TEXT | st.just("")), unique=True, max_size=2).map(tuple),
        limited_by=st.none() | TOKEN,
        created_by=st.none() | TEXT,
    ),
    trace_id=st.none() | st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    batch=st.none() | TEXT,
    id_prefix=st.none() | TOKEN,
    id_suffix=st.none() | TOKEN,
    run=st.none() | TOKEN,
    error_type=st.none() | TEXT,
    awaiting=st.none() | st.sampled_from(AWAITS),
    fingerprints=st.lists(HEX, unique=True, max_size=2).map(tuple),
    input=st.lists(st.tuples(NAME, TEXT), unique=True, max_size=2).map(tuple),
    text=st.none() | TEXT,
    words=st.none() | TEXT,
)


@given(FILTERS)
def test_what_is_printed_is_read_as_the_same(chosen: JobFilter) -> None:
    text = search_text(chosen)
    if len(text) <= TEXT_MAX:
        assert parse_search(text, NOW) == chosen


def test_every_condition_of_a_filter_has_a_key() -> None:
    fields = {each.field for each in KEYS.values()} | {
        "said",
        "id_prefix",
        "id_suffix",
        "input",
        "words",
    }
    beside = {"members", "visible_queues", "visible_tasks"}  # which a door adds
    assert {*JobFilter.__struct_fields__} == (fields - {""}) | beside
    assert {*SaidFilter.__struct_fields__} == {each.said for each in KEYS.values() if each.said} | {
        "metadata"
    }
    for name, key in KEYS.items():
        assert parse_search(pair(name, key.example), NOW) != JobFilter()
