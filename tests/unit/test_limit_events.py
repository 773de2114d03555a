"""Definitions of limits as facts: their wire form, what may follow what, and what holds for a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import (
    InvalidInputError,
    LedgerError,
    LimitNotFoundError,
    RefusedError,
)
from jobledger.ledger.model.limits.definition import (
    LIMIT,
    OVERRIDES_MAX,
    Definition,
    LimitCommand,
    LimitEvent,
    Override,
    SetKey,
    SetLimit,
    Terms,
    decide,
    evolve,
    terms_words,
)
from jobledger.ledger.model.limits.names import joined, split
from jobledger.ledger.model.subjects import Names

GOLDEN = Path(__file__).parent / "golden" / "limits"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="alice", trace="t")


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.limit.tenant.set")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[9:20].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(LIMIT.decode(stored(line))) == line


@pytest.mark.parametrize("cls", LIMIT.types.values(), ids=lambda cls: cls.__name__)
def test_every_field_of_every_event_has_a_golden_line(cls: type[LimitEvent]) -> None:
    lines = [line for line in LINES if type(LIMIT.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


def defined(**changes: Any) -> Definition:
    return evolve(None, decide("tenant", None, SetLimit(**changes), STAMP), 7)


BY_PERSON = defined(terms=Terms(slots=5))
BY_CODE = defined(terms=Terms(slots=5), source="code")
REMOVED = evolve(BY_PERSON, decide("tenant", BY_PERSON, Remove(), STAMP), 8)

# One line per case: the limit as it is, the command, and the fields of the event, or the refusal.
DECISIONS: list[tuple[Definition | None, LimitCommand, dict[str, Any] | type[LedgerError]]] = [
    (None, SetLimit(terms=Terms(slots=3), source="code"), {"type": "set", "slots": 3, "source": "code"}),
    (None, SetLimit(terms=Terms(rate=2.0), reason="r"), {"rate": 2.0, "source": "operator", "reason": "r"}),
    (BY_CODE, SetLimit(terms=Terms(slots=3), source="code"), {"slots": 3, "source": "code"}),
    (BY_CODE, SetLimit(terms=Terms(slots=3)), {"slots": 3, "source": "operator"}),
    (BY_PERSON, SetLimit(terms=Terms(slots=0)), {"slots": 0}),
    (BY_PERSON, SetLimit(terms=Terms(slots=3), source="code"), RefusedError),
    (REMOVED, SetLimit(terms=Terms(slots=3), source="code"), {"slots": 3, "source": "code"}),
    (BY_PERSON, Remove(reason="r"), {"type": "removed", "reason": "r"}),
    (REMOVED, Remove(), LimitNotFoundError),
    (None, Remove(), LimitNotFoundError),
]


ACME, FREE = Override(slots=20), Override(slots=0)
MIXED = evolve(None, decide("tenant", BY_CODE, SetKey(key="acme", override=ACME), STAMP), 8)
KEY_IN_CODE = evolve(None, decide("task", None, SetKey(key="acme", override=ACME, source="code"), STAMP), 8)
DECISIONS.extend(
    [
        # What differs for a key leaves the definition as it is, and whose it is.
        (
            BY_CODE,
            SetKey(key="acme", override=ACME),
            {"slots": 5, "source": "code", "overrides": {"acme": ACME}},
        ),
        (
            MIXED,
            SetKey(key="free", override=FREE),
            {"overrides": {"acme": ACME, "free": FREE}, "key": "free"},
        ),
        (MIXED, SetKey(key="acme", override=None), {"overrides": {}, "authors": {}, "source": "code"}),
        (MIXED, SetKey(key="acme", override=FREE, source="code"), RefusedError),
        (MIXED, SetKey(key="acme", override=FREE, source="code", given_back=True), {"given_back": True}),
        (MIXED, SetKey(key="b", override=FREE, source="code"), {"overrides": {"acme": ACME, "b": FREE}}),
        (KEY_IN_CODE, SetKey(key="acme", override=FREE, source="code"), {"overrides": {"acme": FREE}}),
        (None, SetKey(key="acme", override=ACME), {"source": "operator", "overrides": {"acme": ACME}}),
        (REMOVED, SetKey(key="acme", override=ACME, source="code"), {"source": "code"}),
        # What the definition says leaves the keys as they are, and whose they are.
        (MIXED, SetLimit(terms=Terms(slots=1), source="code"), {"slots": 1, "overrides": {"acme": ACME}}),
        (MIXED, SetLimit(terms=Terms(slots=1)), {"source": "operator", "authors": MIXED.authors}),
        (BY_PERSON, SetLimit(terms=Terms(), source="code", given_back=True), {"source": "code"}),
    ]
)


@each_row(("before", "command", "expected"), DECISIONS)
def test_decide(
    before: Definition | None, command: LimitCommand, expected: dict[str, Any] | type[LedgerError]
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide("tenant", before, command, STAMP)
        return
    event = decide("tenant", before, command, STAMP)
    said = {"type": LIMIT.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.limit, event.at, event.by, event.trace) == ("tenant", NOW, "alice", "t")
    assert LIMIT.check is not None
    assert list(LIMIT.check(before, event, 9)) == []


def test_the_newest_event_alone_is_the_state_and_an_append_is_linked_to_the_chain() -> None:
    first = decide("tenant", None, SetLimit(terms=Terms(slots=3)), STAMP)
    entry = LIMIT.link(Names("staging"), [first], LIMIT.view(None))[0]
    assert (entry.subject, entry.chain) == (
        "staging_ledger.limit.tenant.set",
        "staging_ledger.limit.tenant.>",
    )
    view = LIMIT.advance(entry, first, 5)
    assert view == LIMIT.view(stored(entry.data, 5))
    second = LIMIT.link(Names(), [decide("tenant", view.state, Remove(), STAMP)], view)[0]
    assert (second.expected, LIMIT.decode(stored(second.data)).prev) == (5, digest(entry.data))


def test_what_holds_for_a_key_is_the_limit_s_with_what_differs_for_it() -> None:
    limit = defined(
        terms=Terms(slots=5, rate=2.0, per_s=60.0, burst=2),
        overrides={
            "acme": Override(slots=20, weight=4.0),
            "off": Override(slots=0),
            "once": Override(mode="drop"),
        },
    )
    assert limit.of() == limit.of("other") == Terms(slots=5, rate=2.0, per_s=60.0, burst=2)
    assert limit.of("acme") == Terms(slots=20, rate=2.0, per_s=60.0, burst=2, weight=4.0)
    assert limit.of("off") == Terms(slots=0, rate=2.0, per_s=60.0, burst=2)
    assert limit.of("once") == Terms(slots=5, rate=2.0, per_s=60.0, burst=2, mode="drop")
    assert not REMOVED.is_set
    assert REMOVED.of("acme") is None


@each_row(
    ("terms", "overrides", "sentence"),
    [
        (Terms(slots=-1), {}, "slots must be a whole number from 0 to 9,223,372,036,854,775,807, got -1"),
        (
            Terms(slots=2**63),
            {},
            "slots must be a whole number from 0 to 9,223,372,036,854,775,807, got 9223",
        ),
        (Terms(burst=0), {}, "burst must be a whole number from 1 to 9,223,372,036,854,775,807, got 0"),
        (Terms(rate=0.0), {}, "rate must be a number above 0"),
        (Terms(rate=float("nan")), {}, "rate must be a number above 0"),
        (Terms(rate=10**400), {}, "rate must be a number above 0 and at most 1,000,000"),
        (Terms(per_s=-1.0), {}, "per_s must be a number above 0"),
        (Terms(weight=float("inf")), {}, "weight must be a number above 0"),
        (Terms(mode="wait"), {}, "mode must be queue, newest, replace or drop, got 'wait'"),  # type: ignore[arg-type]
        (Terms(keep="ever"), {}, "keep must be attempt or job, got 'ever'"),  # type: ignore[arg-type]
        (Terms(), {"a": Override(slots=-1)}, "key a: slots must be a whole number"),
        (Terms(), {"a b": Override(slots=1)}, "a key must be 1 to 128 printable characters without spaces"),
        (Terms(), {str(n): Override() for n in range(OVERRIDES_MAX + 1)}, "1,001 keys have numbers"),
    ],
)
def test_numbers_that_cannot_work_are_refused_and_found_by_a_check(
    terms: Terms, overrides: dict[str, Override], sentence: str
) -> None:
    with pytest.raises(InvalidInputError, match=sentence.partition(",")[0]):
        SetLimit(terms=terms, overrides=overrides)
    planted = msgspec.structs.replace(LIMIT.decode(stored(LINES[0])), overrides=overrides)
    planted = msgspec.structs.replace(planted, **msgspec.structs.asdict(terms))
    assert LIMIT.check is not None
    ((rule, found),) = LIMIT.check(None, planted, 9)
    assert rule == "transition"
    assert sentence.partition(",")[0] in found


def test_a_check_finds_a_removal_of_nothing_and_code_that_overrode_a_person() -> None:
    assert LIMIT.check is not None
    removal = decide("tenant", BY_PERSON, Remove(), STAMP)
    by_code = decide("tenant", None, SetLimit(source="code"), STAMP)
    for before, event in ((None, removal), (REMOVED, removal), (BY_PERSON, by_code)):
        assert [rule for rule, _ in LIMIT.check(before, event, 9)] == ["transition"]


def test_an_event_about_one_key_says_whose_the_others_are_and_follows_on_itself() -> None:
    said = MIXED.author("acme")
    assert (said.source, MIXED.author().source, MIXED.author("other").source) == ("operator", "code", "code")
    later = Stamp(at=NOW + timedelta(days=1), by="bob")
    event = decide("tenant", MIXED, SetKey(key="free", override=FREE, reason="x" * 999), later)
    after = evolve(MIXED, event, 9)
    assert (after.author("acme"), after.author(), after.by) == (said, MIXED.author(), "alice")
    assert (after.author("free").by, len(after.author("free").reason)) == ("bob", 100)
    assert LIMIT.check is not None
    assert list(LIMIT.check(after, event, 10)) == []  # as an archive run appends it
    assert list(LIMIT.check(None, event, 10)) == []  # where the run took what came before


def test_an_old_event_with_keys_is_all_of_its_author() -> None:
    old = evolve(None, LIMIT.decode(stored(LINES[1])), 9)
    assert {old.author(key).source for key in ("", "acme", "free", "other")} == {"operator"}
    assert {old.author(key).by for key in ("", "acme", "free", "other")} == {"alice"}


@each_row(
    ("changes", "sentence"),
    [
        ({"slots": 99}, "it is about key free and changed the definition"),
        ({"source": "operator", "defined": None}, "it is about key free and changed the definition"),
        ({"overrides": {"free": FREE}}, "it is about key free and changed what differs for acme"),
        ({"authors": {}}, "it is about key free and changed what differs for acme"),
        ({"overrides": {"acme": ACME, "free": Override(slots=-1)}}, "key free: slots must be a whole number"),
    ],
)
def test_a_check_finds_what_an_event_about_a_key_changed_besides(
    changes: dict[str, Any], sentence: str
) -> None:
    event = decide("tenant", MIXED, SetKey(key="free", override=FREE), STAMP)
    assert LIMIT.check is not None
    found = [text for _, text in LIMIT.check(MIXED, msgspec.structs.replace(event, **changes), 9)]
    assert any(sentence in text for text in found), found


def test_an_archive_run_leaves_what_is_set_and_takes_what_was_removed() -> None:
    kept = LIMIT.kept(stored(LINES[0], 4))
    assert kept is not None
    assert kept.from_sequence == 4
    assert LIMIT.kept(stored(LINES[2], 4)) is None


@each_row(
    ("terms", "words"),
    [
        (Terms(), "no bound"),
        (Terms(slots=0), "slots 0"),
        (Terms(slots=5, rate=10.0, per_s=60.0, burst=2), "slots 5, 10 per minute, burst 2"),
        (Terms(slots=1, keep="job", mode="newest", weight=2.5), "slots 1, mode newest, keep job, weight 2.5"),
        (Override(slots=1, weight=2.5), "slots 1, weight 2.5"),
    ],
)
def test_terms_in_words(terms: Terms | Override, words: str) -> None:
    assert terms_words(terms) == words


def test_a_limit_is_a_name_and_a_key() -> None:
    assert split("url:https://a.b/c:8") == ("url", "https://a.b/c:8")
    assert (split("global"), joined("global", ""), joined("tenant", "a")) == (
        ("global", ""),
        "global",
        "tenant:a",
    )
