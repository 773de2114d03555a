"""Webhooks as facts: their wire form, what can be asked of one, what may follow what, and what an archive run leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.stories import Story, check, found
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import InvalidError, LedgerError, RefusedError
from jobledger.ledger.model.hooks.definition import (
    WebhookDefinition,
    WebhookTarget,
    check_webhook_name,
    target_words,
)
from jobledger.ledger.model.hooks.errors import WebhookNotFoundError
from jobledger.ledger.model.hooks.webhook import (
    WEBHOOK,
    Disable,
    Fail,
    Pause,
    Resume,
    Rotate,
    SetWebhook,
    Succeed,
    Webhook,
    WebhookCommand,
    WebhookDisabled,
    WebhookEvent,
    WebhookPaused,
    WebhookRemoved,
    WebhookResumed,
    WebhookSet,
    decide,
    evolve,
)
from jobledger.ledger.model.subjects import Names, check_users_queue

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="ann", trace="t")
LINES = [line.data for line in golden_lines() if line.aggregate == "webhook"]
URL = WebhookTarget(url="https://example.com/hooks")
TERMS = WebhookDefinition(target=URL, events=("completed", "failed"), secrets=("env:A",))
OTHER = msgspec.structs.replace(TERMS, events=("failed",))
ACTIVE = Webhook(name="shop", definition=TERMS, status="active", since=7, at=NOW, by="ann", sequence=8)
PAUSED = msgspec.structs.replace(ACTIVE, status="paused", since=0)
DISABLED = msgspec.structs.replace(PAUSED, status="disabled")
REMOVED = msgspec.structs.replace(PAUSED, status="removed")
FAILING = msgspec.structs.replace(ACTIVE, failing_since=NOW - timedelta(days=4))
FAILED_LONG = msgspec.structs.replace(ACTIVE, failing_since=NOW - timedelta(days=5))


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.webhook.shop.set")


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(WEBHOOK.decode(stored(line))) == line


@each_row("cls", WEBHOOK.types.values())
def test_every_field_of_every_event_has_a_golden_line(cls: type[msgspec.Struct]) -> None:
    lines = [line for line in LINES if type(WEBHOOK.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


# One line per case: the webhook as it is, the command, and the fields of the event, None for no event, or the refusal.
DECISIONS: list[tuple[Webhook | None, WebhookCommand, dict[str, object] | type[LedgerError] | None]] = [
    (None, SetWebhook(definition=TERMS, reason="r"), {"type": "set", "status": "active", "since": 0, "reason": "r"}),
    (REMOVED, SetWebhook(definition=TERMS), {"type": "set", "status": "active"}),
    (ACTIVE, SetWebhook(definition=TERMS), None),
    (ACTIVE, SetWebhook(definition=OTHER), {"type": "set", "status": "active", "since": 0, "definition": OTHER}),
    (PAUSED, SetWebhook(definition=OTHER), {"type": "set", "status": "paused"}),
    (DISABLED, SetWebhook(definition=OTHER), {"type": "set", "status": "disabled"}),
    (FAILING, SetWebhook(definition=OTHER), {"failing_since": FAILING.failing_since}),
    (FAILING, SetWebhook(definition=msgspec.structs.replace(TERMS, target=WebhookTarget(url="https://b.example"))), {"failing_since": None}),
    (ACTIVE, Pause(reason="r"), {"type": "paused", "status": "paused", "since": 0, "reason": "r"}),
    (PAUSED, Pause(), RefusedError),
    (DISABLED, Pause(), RefusedError),
    (PAUSED, Resume(), {"type": "resumed", "status": "active", "since": 0}),
    (DISABLED, Resume(), {"type": "resumed", "status": "active", "failing_since": None}),
    (ACTIVE, Resume(), RefusedError),
    (ACTIVE, Rotate(secret="env:B"), {"type": "rotated", "since": 7, "definition": msgspec.structs.replace(TERMS, secrets=("env:B", "env:A"), old_secret_until=NOW + timedelta(days=1))}),
    (ACTIVE, Rotate(secret="env:B", keep_old_s=0), {"definition": msgspec.structs.replace(TERMS, secrets=("env:B",))}),
    (ACTIVE, Rotate(secret="env:A"), RefusedError),
    (ACTIVE, Rotate(secret="a secret"), InvalidError),
    (ACTIVE, Rotate(secret="env:B", keep_old_s=-1), InvalidError),
    (PAUSED, Rotate(secret="env:B"), {"type": "rotated", "status": "paused", "since": 0}),
    (ACTIVE, Fail(why="500"), {"type": "failing", "failing_since": NOW, "since": 7, "reason": "500"}),
    (FAILING, Fail(why="500"), None),
    (FAILED_LONG, Fail(why="500"), {"type": "disabled", "status": "disabled", "since": 0}),
    (PAUSED, Fail(why="500"), None),
    (ACTIVE, Succeed(), None),
    (FAILING, Succeed(), {"type": "recovered", "failing_since": None, "since": 7}),
    (ACTIVE, Disable(why="gone"), {"type": "disabled", "reason": "gone"}),
    (DISABLED, Disable(why="gone"), None),
    (ACTIVE, Remove(reason="r"), {"type": "removed", "since": 0}),
    (None, Remove(), WebhookNotFoundError),
    (REMOVED, Pause(), WebhookNotFoundError),
    (None, Succeed(), WebhookNotFoundError),
]  # fmt: skip


@each_row(("webhook", "command", "expected"), DECISIONS)
def test_decide(
    webhook: Webhook | None,
    command: WebhookCommand,
    expected: dict[str, object] | type[LedgerError] | None,
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide("shop", webhook, command, STAMP)
        return
    event = decide("shop", webhook, command, STAMP)
    if event is None or expected is None:
        assert (event, expected) == (None, None)
        return
    said = {"type": WEBHOOK.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.webhook, event.at, event.by, event.trace) == ("shop", NOW, "ann", "t")
    assert WEBHOOK.subject(Names("staging"), event) == f"staging_ledger.webhook.shop.{said['type']}"


# One line per case: what differs from a definition that works, and what the refusal says.
PRIVATE = [
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1.", "127.0.0.1"),
    ("127.1", "127.0.0.1"),
    ("2130706433", "127.0.0.1"),
    ("0x7F000001", "127.0.0.1"),
    ("0177.0.0.01", "127.0.0.1"),
    ("0", "0.0.0.0"),
    ("LocalHost", "127.0.0.1"),
    ("shop.localhost.", "127.0.0.1"),
    ("169.254.169.254", "169.254.169.254"),
    ("0xa9fea9fe", "169.254.169.254"),
    ("10.1.2.3", "10.1.2.3"),
    ("[::1]", "::1"),
    ("[::ffff:10.0.0.1]", "::ffff:a00:1"),
    ("[fe80::1%25eth0]", "fe80::1%25eth0"),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"events": ()}, "at least one type"),
    ({"events": ("complete",)}, "there is no event 'complete'"),
    ({"events": ("watch.firing",), "task": "pack"}, "have no task"),
    ({"target": WebhookTarget()}, "one target"),
    ({"target": WebhookTarget(url=URL.url, task="pack")}, "one target"),
    ({"target": WebhookTarget(url=URL.url, queue="q")}, "a URL has no queue"),
    ({"target": WebhookTarget(url="http://example.com")}, "is not encrypted"),
    ({"target": WebhookTarget(url="ftp://example.com")}, "is no URL of the web"),
    ({"target": WebhookTarget(url="https://")}, "is no URL of the web"),
    ({"target": WebhookTarget(url="https://a:99999/")}, "is no URL of the web"),
    ({"target": WebhookTarget(url="https://[::1/")}, "is no URL of the web"),
    ({"target": WebhookTarget(url="https://exa mple.com/")}, "is no URL of the web"),
    ({"target": WebhookTarget(url="https://ann:secret@example.com/")}, "a user or a password"),
    ({"target": WebhookTarget(url="https://example.com/#part")}, "fragment"),
    *(({"target": WebhookTarget(url=f"https://{host}:8443/in")}, f"goes to {address}") for host, address in PRIVATE),
    ({"secrets": ()}, "name the secret"),
    ({"secrets": ("plain text",)}, "is no reference to a secret"),
    ({"secrets": ("env:A", "env:B", "env:C")}, "at most 2"),
    ({"queue": "a.b"}, "queue 'a.b' is not valid"),
    ({"task": "a b"}, "task name"),
    ({"include": ("inputs",)}, "include must be"),
    ({"format": "xml"}, "format must be"),
    ({"headers": {"Host": "x"}}, "is set by the delivery itself"),
    ({"headers": {"webhook-id": "x"}}, "is set by the delivery itself"),
    ({"headers": {"a b": "x"}}, "is no name of a header"),
    ({"headers": {"a": "x\r\ny: z"}}, "printable"),
    ({"headers": {f"x-{number}": "" for number in range(17)}}, "at most 16"),
    ({"target": WebhookTarget(task="pack"), "secrets": ()}, "would match it again"),
    ({"target": WebhookTarget(task="pack", queue="q"), "secrets": (), "task": "pack"}, "would match it again"),
    ({"target": WebhookTarget(task="pack"), "secrets": ("env:A",), "task": "ship"}, "a job is not signed"),
    ({"target": WebhookTarget(task="pack", queue="webhooks-out"), "secrets": (), "task": "ship"}, "the ledger's own jobs"),
]  # fmt: skip


@each_row(("differs", "said"), REFUSED)
def test_what_a_webhook_cannot_do_is_refused_with_a_sentence(differs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidError) as refused:
        SetWebhook(definition=msgspec.structs.replace(TERMS, **differs))
    assert said in str(refused.value)
    assert "plain text" not in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_a_definition_is_kept_in_one_form() -> None:
    given = WebhookDefinition(target=WebhookTarget(task="bill"), events=("failed", "completed", "failed"), task="pack", include=("result", "error"))  # fmt: skip
    kept = SetWebhook(definition=given).definition
    assert (kept.events, kept.include, kept.target.queue) == (("completed", "failed"), ("error", "result"), "default")  # fmt: skip
    for url, terms in (
        ("http://a.example", {"allow_http": True}),
        ("https://10.1.2.3/in", {"allow_private": True}),
        ("https://8.8.8.8/in", {}),
        ("https://10.example/in", {}),
    ):
        SetWebhook(definition=msgspec.structs.replace(TERMS, target=WebhookTarget(url=url), **terms))
    for behind in ("/in?key=gold", "/services/T000/B000/gold", ""):
        assert target_words(WebhookTarget(url=f"https://example.com{behind}")) == "https://example.com/..."


def test_names_of_webhooks_leave_room_for_what_ids_of_deliveries_add() -> None:
    assert check_webhook_name("a" * 32) == "a" * 32
    for name in ("a" * 33, "a.b", ""):
        with pytest.raises(InvalidError):
            check_webhook_name(name)


@each_row("queue", ["webhooks-out", "webhooks-out-2", "jobledger", "jobledger-acts"])
def test_queues_of_the_ledgers_own_jobs_are_not_for_users(queue: str) -> None:
    with pytest.raises(InvalidError, match="the ledger's own jobs"):
        check_users_queue(queue)


def test_the_newest_event_alone_is_the_state_and_a_set_begins_a_term() -> None:
    state: Webhook | None = None
    terms: list[int] = []
    commands: list[WebhookCommand] = [
        SetWebhook(definition=TERMS), Fail(why="w"), Rotate(secret="env:B"), Succeed(), Pause(), Resume(), SetWebhook(definition=OTHER), Remove(),
    ]  # fmt: skip
    for sequence, command in enumerate(commands, start=10):
        event = decide("shop", state, command, STAMP)
        assert event is not None
        before, state = state, evolve(state, event, sequence)
        assert state == evolve(None, event, sequence) != before
        terms.append(state.since)
    assert terms == [10, 10, 10, 10, 0, 15, 16, 0]


def test_the_old_secret_signs_until_its_time() -> None:
    event = decide("shop", ACTIVE, Rotate(secret="env:B", keep_old_s=60), STAMP)
    assert event is not None
    webhook = evolve(None, event, 9)
    late = NOW + timedelta(seconds=60)
    assert webhook.secrets(NOW) == ("env:B", "env:A")
    assert webhook.secrets(late) == ("env:B",)


def test_what_a_webhook_cannot_have_been_is_found() -> None:
    terms: dict[str, Any] = {"webhook": "shop", "at": NOW, "by": "ann", "definition": TERMS}
    story = Story()
    events: list[WebhookEvent] = [
        WebhookSet(**terms),
        WebhookPaused(**terms, status="paused"),
        WebhookPaused(**terms, status="paused"),  # once more, as archive runs say it
        WebhookResumed(**terms),
        WebhookRemoved(**terms, status="removed"),
    ]
    for event in events:
        story.record(event)
    assert check(story.messages).sound
    for event in (
        WebhookPaused(**terms, status="paused"),
        WebhookSet(**terms),
        WebhookResumed(**terms, reason="once more"),
        WebhookDisabled(webhook="shop", at=NOW, by="ann", definition=OTHER, status="disabled"),
    ):
        story.record(event)
    assert found(check(story.messages)) == [
        (6, "webhook shop", "transition"),
        (8, "webhook shop", "transition"),
        (9, "webhook shop", "transition"),
    ]


def test_an_archive_run_says_once_more_what_holds_in_the_same_term() -> None:
    for line in LINES:
        before = WEBHOOK.evolve(None, WEBHOOK.decode(stored(line)), 9)
        after = WEBHOOK.evolve(None, WEBHOOK.said_again(stored(line)), 77)
        assert after == msgspec.structs.replace(before, sequence=77)


def test_a_webhook_stays_until_it_is_removed() -> None:
    kept = [WEBHOOK.kept(stored(line)) for line in LINES]
    assert [each is not None for each in kept] == [b'"type":"removed"' not in line for line in LINES]
