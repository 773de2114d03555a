"""Keys as facts: their wire form, what may follow what, which secret opens what, and which names a pattern matches."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.stories import Story, check, found
from tests.support.tables import each_row

from jobledger.ledger.access.secret import new_key, read_key
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import InvalidInputError, LedgerError, NotFoundError, RefusedError
from jobledger.ledger.model.key import (
    ACCESS,
    AccessCommand,
    CreateKey,
    Key,
    KeyCreated,
    KeyRedeemed,
    KeyRevoked,
    KeyRotated,
    RedeemKey,
    RevokeKey,
    RotateKey,
    decide,
    evolve,
)
from jobledger.ledger.model.rights.grants import EVERYTHING, PERMISSIONS, Scope, checked_patterns, matches
from jobledger.ledger.model.subjects import Names

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SOON, LATER = NOW + timedelta(minutes=1), NOW + timedelta(hours=1)
STAMP = Stamp(at=NOW, by="ann", trace="t")
LINES = [line.data for line in golden_lines() if line.aggregate == "access"]
ID, A, B, C = "k3x9q2m7w1zt", "a" * 64, "b" * 64, "c" * 64


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject=f"ledger.access.{ID}.created")


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(ACCESS.decode(stored(line))) == line


@each_row("cls", ACCESS.types.values())
def test_every_field_of_every_event_has_a_golden_line(cls: type[msgspec.Struct]) -> None:
    lines = [line for line in LINES if type(ACCESS.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


def made(*commands: AccessCommand, at: datetime = NOW) -> Key:
    """Return a key after some commands, one second apart."""
    key: Key | None = None
    for number, command in enumerate(commands):
        stamp = Stamp(at=at + timedelta(seconds=number), by="ann")
        key = evolve(key, decide(ID, key, command, stamp), number + 1)
    assert key is not None
    return key


CREATE = CreateKey(name="ci", sha256=A, role="viewer")
LINK = CreateKey(name="dana", sha256=A, role="admin", redeem_by=SOON, expires_at=LATER)
KEY, USED, REVOKED = made(CREATE), made(LINK, RedeemKey()), made(CREATE, RevokeKey())
EXPIRED = made(msgspec.structs.replace(CREATE, expires_at=NOW), at=NOW - timedelta(hours=1))

# One line per case: the key as it is, the command, and the fields of the event, or the refusal.
DECISIONS: list[tuple[Key | None, AccessCommand, dict[str, Any] | type[LedgerError]]] = [
    (None, CREATE, {"type": "created", "name": "ci", "sha256": A, "role": "viewer", "redeem_by": None}),
    (None, LINK, {"type": "created", "redeem_by": SOON, "expires_at": LATER}),
    (KEY, CREATE, RefusedError),
    (None, msgspec.structs.replace(CREATE, expires_at=NOW), InvalidInputError),
    (None, msgspec.structs.replace(LINK, redeem_by=NOW), InvalidInputError),
    (KEY, RotateKey(sha256=B), {"type": "rotated", "sha256": B, "previous": "", "name": "ci", "made_by": "ann"}),
    (KEY, RotateKey(sha256=B, grace_s=60), {"previous": A, "previous_until": SOON, "role": "viewer"}),
    (KEY, RotateKey(sha256=A), RefusedError),
    (made(LINK), RotateKey(sha256=B), RefusedError),
    (USED, RotateKey(sha256=B), RefusedError),
    (REVOKED, RotateKey(sha256=B), RefusedError),
    (EXPIRED, RotateKey(sha256=B), RefusedError),
    (None, RotateKey(sha256=B), NotFoundError),
    (KEY, RedeemKey(), RefusedError),
    (made(LINK), RedeemKey(), {"type": "redeemed", "sha256": A, "expires_at": LATER}),
    (USED, RedeemKey(), RefusedError),
    (EXPIRED, RedeemKey(), RefusedError),
    (KEY, RevokeKey(reason="r"), {"type": "revoked", "reason": "r"}),
    (USED, RevokeKey(), {"type": "revoked"}),
    (REVOKED, RevokeKey(), RefusedError),
    (None, RevokeKey(), NotFoundError),
]  # fmt: skip


@each_row(("before", "command", "expected"), DECISIONS)
def test_decide(
    before: Key | None, command: AccessCommand, expected: dict[str, Any] | type[LedgerError]
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide(ID, before, command, STAMP)
        return
    event = decide(ID, before, command, STAMP)
    said = {"type": ACCESS.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.key, event.at, event.by, event.trace) == (ID, NOW, "ann", "t")
    assert ACCESS.subject(Names("staging"), event) == f"staging_ledger.access.{ID}.{said['type']}"
    assert ACCESS.check is not None
    assert list(ACCESS.check(before, event, 9)) == []


@each_row(
    ("changes", "sentence"),
    [
        ({"role": None}, "a key needs a role (viewer, enqueuer, operator or admin) or permissions"),
        ({"role": "root"}, "there is no role 'root'"),
        ({"permissions": ("fly",)}, "there is no permission 'fly'"),
        ({"name": ""}, "the name of a key must be 1 to 128 printable characters"),
        ({"name": "x" * 65}, "the name of a key has 65 characters: give at most 64"),
        ({"queues": ("a.b",)}, "queues must be patterns of 1 to 64 of"),
        ({"tasks": ("x",) * 51}, "tasks has 51 patterns: give at most 50"),
        ({"expires_at": NOW.replace(tzinfo=None)}, "expires_at has no time zone"),
        ({"sha256": "secret"}, "sha256 of a key's secret must be 64 hexadecimal digits"),
    ],
)
def test_a_key_that_nobody_can_use_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        CreateKey(**dict[str, Any](name="ci", sha256=A, role="viewer") | changes)


def test_lists_are_put_in_order_and_a_pattern_of_everything_is_none() -> None:
    command = CreateKey(
        name="ci", sha256=A, permissions=("run", "view", "run"), queues=("b", "a", "b"), tasks=("x", "*")
    )
    assert (command.permissions, command.queues, command.tasks) == (("view", "run"), ("a", "b"), ())


def test_the_old_secret_opens_for_as_long_as_its_grace_lasts() -> None:
    key = made(CREATE, RotateKey(sha256=B, grace_s=60))
    until = key.previous_until
    assert until is not None
    before_it = until - timedelta(microseconds=1)
    assert [key.opens(each, before_it) for each in (A, B, C)] == [True, True, False]
    assert [key.opens(each, until) for each in (A, B, C)] == [False, True, False]
    again = made(CREATE, RotateKey(sha256=B, grace_s=60), RotateKey(sha256=C, grace_s=60))
    assert [again.opens(each, NOW) for each in (A, B, C)] == [False, True, True]
    at_once = made(CREATE, RotateKey(sha256=B))
    assert [at_once.opens(each, NOW) for each in (A, B, "")] == [False, True, False]


def test_a_link_opens_nothing_serves_once_and_its_session_ends_with_it() -> None:
    link = made(LINK)
    assert not link.opens(A, NOW)
    assert not link.keeps_session(B, NOW)
    assert [link.redeems(A, NOW), link.redeems(B, NOW), link.redeems(A, SOON)] == [True, False, False]
    assert [USED.redeems(A, NOW), USED.opens(A, NOW), USED.keeps_session(A, SOON)] == [False, False, True]
    assert not USED.keeps_session(A, LATER)
    assert not made(LINK, RedeemKey(), RevokeKey()).keeps_session(A, NOW)
    assert [each.standing(SOON) for each in (link, USED, KEY, REVOKED, EXPIRED)] == [
        "expired", "used", "live", "revoked", "expired",
    ]  # fmt: skip


def test_what_was_revoked_opens_nothing_not_even_with_an_empty_digest() -> None:
    assert [REVOKED.opens(each, NOW) for each in (A, "")] == [False, False]
    gone = evolve(None, KeyRevoked(key=ID, at=NOW, by="ann", prev="x"), 7)
    assert (gone.opens("", NOW), gone.standing(NOW)) == (False, "revoked")


def test_what_a_key_cannot_have_been_is_found() -> None:
    story = Story()
    fact: dict[str, Any] = {"key": ID, "at": NOW, "by": "ann"}
    whole: dict[str, Any] = fact | {"name": "ci", "sha256": A, "role": "viewer"}
    since: dict[str, Any] = {"made_at": NOW, "made_by": "ann"}
    story.record(KeyCreated(**whole))
    story.record(KeyCreated(**whole))  # as an archive run says it once more
    story.record(KeyRotated(**whole | {"sha256": B}, **since))
    story.record(KeyRotated(**whole | {"sha256": C, "role": "admin"}, **since))  # more than it had
    story.record(KeyRedeemed(**whole | {"sha256": C, "role": "admin"}, **since))  # no link
    story.record(KeyRevoked(**fact))
    assert check(story.messages[:3]).sound
    assert found(check(story.messages)) == [(each, f"access {ID}", "transition") for each in (4, 5)]
    other = Story()
    other.record(KeyRotated(**whole, **since))
    assert found(check(other.messages)) == [(1, f"access {ID}", "transition")]


def test_a_key_stays_in_the_ledger_until_it_ends() -> None:
    kept = [ACCESS.kept(stored(line)) for line in LINES]
    ends = [None if each is None else (each.from_sequence, each.until) for each in kept]
    year, soon = datetime(2027, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 14, tzinfo=UTC)
    assert ends == [(9, None), (9, soon), (9, None), (9, year), (9, year), None, None]


def test_a_text_is_read_as_the_key_that_it_is_and_anything_else_is_none() -> None:
    one, other = new_key(), new_key()
    read = read_key(one.text)
    assert read is not None
    assert (read.key, read.sha256) == (one.key, one.sha256)
    assert one.key != other.key
    assert one.sha256 != other.sha256
    assert len(one.text) == 3 + 12 + 1 + 43
    assert new_key(one.key).key == one.key
    last = [read_key(one.text[:-1] + each) for each in f"{string.ascii_letters}{string.digits}-_"]
    assert [each for each in last if each is not None and each.sha256 == one.sha256] == [read], "written once"
    for wrong in (
        "",
        "jl_",
        one.text[:-1],
        one.text + "A",
        one.text.upper(),
        one.text[:-1] + "!",
        f" {one.text}",
    ):
        assert read_key(wrong) is None, wrong


@each_row(
    ("pattern", "name", "expected"),
    [
        ("billing", "billing", True),
        ("billing", "billing2", False),
        ("billing-*", "billing-", True),
        ("*-eu", "billing-eu", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("*", "anything", True),
        ("**", "", True),
        ("*a*a*", "ba", False),
        ("B*", "billing", False),
    ],
)
def test_a_star_is_any_characters(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_a_scope_has_the_jobs_whose_queue_and_task_both_match() -> None:
    scope = Scope(queues=("billing-*", "mail"), tasks=("send*",))
    assert [scope.has(*each) for each in (("mail", "send"), ("mail", "bill"), ("web", "send"))] == [
        True,
        False,
        False,
    ]
    assert EVERYTHING.has("any", "thing")
    assert (EVERYTHING.is_everything, scope.is_everything) == (True, False)
    assert checked_patterns("queues", ["a", "***"]) == ()


def test_roles_are_made_of_permissions_as_documented() -> None:
    assert made(CreateKey(name="x", sha256=A, role="operator")).allowed == set(PERMISSIONS) - {
        "erase",
        "admin",
    }
    assert made(CreateKey(name="x", sha256=A, role="enqueuer")).allowed == {"queue"}
    assert made(CreateKey(name="x", sha256=A, role="viewer", permissions=("queue",))).allowed == {
        "view",
        "queue",
    }
