"""Events of owners: golden lines, what may follow what, and what a check finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import (
    AccessDeniedError,
    InvalidInputError,
    LedgerError,
    OwnerErasingError,
    RefusedError,
)
from jobledger.ledger.model.owner import (
    OWNER,
    BeginErasing,
    EndErasing,
    HoldOwner,
    OwnerCommand,
    OwnerErased,
    OwnerErasing,
    OwnerHeld,
    OwnerState,
    OwnerUnheld,
    UnholdOwner,
    decide,
    evolve,
)
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES

AT: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER: Final = AT + timedelta(hours=1)
LINES: Final = [line.data for line in golden_lines() if line.aggregate == "owner"]
NAME: Final[dict[str, Any]] = {"kind": "person", "id": "17", "at": AT, "by": "ann"}
HELD: Final = OwnerHeld(**NAME, until=LATER + timedelta(hours=1), reason="a lawsuit")
UNHELD: Final = OwnerUnheld(**NAME)
ERASING: Final = OwnerErasing(**NAME, number=1, begun_at=AT, request="4711", reason="asked")
ERASED: Final = OwnerErased(**NAME, number=1, destroyed_at=AT)
BEGIN: Final = BeginErasing(number=1, reason="asked")
END: Final = EndErasing(number=1, jobs=3, cancelled=1, destroyed_at=AT, masters=("m1",))


def stamp(**more: Any) -> Stamp:
    return Stamp(at=LATER, by="bob", **more)


def after(*events: Any) -> OwnerState | None:
    state = None
    for number, event in enumerate(events, 1):
        state = evolve(state, event, number)
    return state


@each_row("line", LINES)
def test_golden_lines_are_read_and_written_alike(line: bytes) -> None:
    subject = f"ledger.owner.person.17.{msgspec.json.decode(line)['type']}"
    event = OWNER.decode(Message(data=line, stream_sequence=1, stored_at=AT, subject=subject))
    assert msgspec.json.encode(event) == line
    assert OWNER.is_at(subject, event)
    OWNER.words(event)


@each_row(
    "before, command, expected",
    [
        ((), HoldOwner(), "held"),
        ((HELD,), HoldOwner(reason="again"), "held"),
        ((HELD,), UnholdOwner(), "unheld"),
        ((), BEGIN, "erasing"),
        ((UNHELD,), BEGIN, "erasing"),
        ((msgspec.structs.replace(HELD, until=LATER),), BEGIN, "erasing"),  # the hold has ended
        ((ERASING,), BEGIN, ""),
        ((ERASED,), BEGIN, ""),
        ((ERASED,), BeginErasing(number=2), "erasing"),
        ((ERASED,), BeginErasing(number=1, has_key=True), "erasing"),  # made after the bucket was lost
        ((ERASING,), END, "erased"),
        ((ERASED,), END, ""),  # somebody else was faster
        ((ERASED,), HoldOwner(), "held"),
    ],
)
def test_what_follows(before: tuple[Any, ...], command: OwnerCommand, expected: str) -> None:
    event = decide("person:17", after(*before), command, stamp())
    assert ("" if event is None else OWNER.type_of(event)) == expected
    if event is not None:
        assert OWNER.check is not None
        assert not list(OWNER.check(after(*before), event, 9))
        assert event.number >= (before[-1].number if before else 0)


@each_row(
    "before, command, error, said",
    [
        (
            (HELD,),
            BEGIN,
            RefusedError,
            "must be kept: held by ann since .* until .*: a lawsuit; lift the hold",
        ),
        ((ERASING,), HoldOwner(), OwnerErasingError, "is being erased"),
        ((), HoldOwner(until=AT), InvalidInputError, "is past"),
        ((), UnholdOwner(), RefusedError, "is not held"),
        ((ERASED,), UnholdOwner(), RefusedError, "is not held"),
        ((), END, RefusedError, "nobody began to erase the key person:17/1"),
    ],
)
def test_what_is_refused(
    before: tuple[Any, ...], command: OwnerCommand, error: type[LedgerError], said: str
) -> None:
    with pytest.raises(error, match=said):
        decide("person:17", after(*before), command, stamp())


@each_row(
    "more, said",
    [
        ({"grace_s": -1.0}, "grace_s must be"),
        ({"grace_s": 1e9}, "grace_s must be"),
        ({"request": "a\nb"}, "printable"),
    ],
)
def test_what_cannot_be_recorded_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        BeginErasing(number=1, **more)


def test_a_name_that_no_owner_has_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="kind:id"):
        decide("jane@example.org", None, BEGIN, stamp())


def test_only_who_has_the_permission_erases_and_holds() -> None:
    for command in (BEGIN, HoldOwner()):
        others = Principal(name="bob", permissions=frozenset(PERMISSIONS) - {"erase"})
        with pytest.raises(AccessDeniedError):
            decide("person:17", None, command, stamp(authority=others))
        officer = Principal(name="bob", permissions=frozenset({"erase"}))
        assert decide("person:17", None, command, stamp(authority=officer)) is not None
        bound = msgspec.structs.replace(officer, queues=("mail",))
        with pytest.raises(AccessDeniedError):
            decide("person:17", None, command, stamp(authority=bound))
    assert [name for name, has in ROLES.items() if "erase" in has] == ["admin"]


def test_a_ledger_of_an_earlier_form_has_no_owners() -> None:
    with pytest.raises(RefusedError, match="jobledger upgrade finish"):
        decide("person:17", None, BEGIN, stamp(form=1))


@each_row(
    "before, event, rule",
    [
        ((HELD,), ERASING, "transition"),
        ((ERASING,), HELD, "transition"),
        ((), UNHELD, "transition"),
        ((), ERASED, "transition"),
        ((ERASING,), msgspec.structs.replace(ERASED, number=2), "transition"),
        ((ERASING,), msgspec.structs.replace(ERASING, number=2), "transition"),
        ((ERASED,), HELD, "owner"),  # number 0 after 1
    ],
)
def test_a_check_finds_what_must_not_follow(before: tuple[Any, ...], event: Any, rule: str) -> None:
    assert OWNER.check is not None
    assert next(found for found, _ in OWNER.check(after(*before), event, 9)) == rule


def test_an_archive_run_says_holds_and_unfinished_erasures_again() -> None:
    for event, stays in ((HELD, True), (ERASING, True), (UNHELD, False), (ERASED, False)):
        message = Message(
            data=OWNER.encode(event), stream_sequence=3, stored_at=AT, subject=OWNER.type_of(event)
        )
        assert (OWNER.kept(message) is not None) == stays
    assert OWNER.restated
    assert OWNER.check is not None
    for event in (HELD, ERASING):
        assert not list(OWNER.check(after(event), event, 9))
