"""The events of a webhook, the state they add up to, and what may follow: `WebhookEvent`, `evolve`, `decide`. Pure.

Each of its events holds the whole state, so the newest one *is* the state. A `set` and a `resumed` begin a term: from
their own stream sequence on, events match, until the next `set`, `paused`, `disabled` or `removed`. Released fields
never change type, meaning or name.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.model.hooks.definition import (
    SECRETS_MAX,
    WebhookDefinition,
    checked_definition,
    filter_words,
    target_words,
)
from jobledger.ledger.model.hooks.errors import WebhookNotFoundError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.times import shown_time

#: A webhook whose deliveries have all failed for this long is disabled.
FAILING_S_MAX: Final = 5 * 24 * 3600.0
_KEEP_OLD_S_MAX: Final = 366 * 24 * 3600.0

Status = Literal["active", "paused", "disabled", "removed"]


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a webhook: its state after the event."""

    webhook: str  #: its name
    definition: WebhookDefinition  #: what it does
    status: Status = "active"  #: whether events match
    since: Whole = 0  #: the stream sequence after which events match; 0: after this event, or none match
    failing_since: Moment | None = None  #: since when all deliveries have failed; none: they arrive
    reason: str = ""  #: the reason of the person or the gateway


class WebhookSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the webhook does what this event says, whatever it did before."""


class WebhookPaused(_Fact, frozen=True, kw_only=True, tag="paused", gc=False):
    """Somebody stopped the webhook: no event matches any more, and waiting deliveries are not sent."""


class WebhookResumed(_Fact, frozen=True, kw_only=True, tag="resumed", gc=False):
    """Somebody lets events match again, from here on; the events of the time between can be redelivered."""


class WebhookRotated(_Fact, frozen=True, kw_only=True, tag="rotated", gc=False):
    """Messages are signed with a new secret, and for a time with the old one, too."""


class WebhookFailing(_Fact, frozen=True, kw_only=True, tag="failing", gc=False):
    """A delivery failed several times, and none has arrived since."""


class WebhookRecovered(_Fact, frozen=True, kw_only=True, tag="recovered", gc=False):
    """A delivery arrived again."""


class WebhookDisabled(_Fact, frozen=True, kw_only=True, tag="disabled", gc=False):
    """The gateway stopped the webhook: its receiver is gone, or all deliveries failed for five days."""


class WebhookRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """Somebody ended the webhook. Its name may be set again."""


WebhookEvent = (
    WebhookSet
    | WebhookPaused
    | WebhookResumed
    | WebhookRotated
    | WebhookFailing
    | WebhookRecovered
    | WebhookDisabled
    | WebhookRemoved
)


class Webhook(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A webhook after its newest event."""

    name: str
    definition: WebhookDefinition
    status: Status
    since: int  #: the stream sequence after which events match, the name of its term; 0: none match
    failing_since: Moment | None = None
    at: Moment  #: of the newest event
    by: str
    reason: str = ""
    sequence: int  #: stream sequence of the newest event

    @property
    def is_active(self) -> bool:
        """Whether events match."""
        return self.status == "active"

    def secrets(self, now: datetime) -> tuple[str, ...]:
        """Return the references to the secrets that sign a message sent now, the newest first."""
        until = self.definition.old_secret_until
        return self.definition.secrets[: 1 if until is not None and until <= now else SECRETS_MAX]


def evolve(_before: Webhook | None, event: WebhookEvent, stream_sequence: int) -> Webhook:
    """Return the webhook after `event`, whatever came before it."""
    return Webhook(
        name=event.webhook,
        definition=event.definition,
        status=event.status,
        since=(event.since or stream_sequence) if event.status == "active" else 0,
        failing_since=event.failing_since,
        at=event.at,
        by=event.by,
        reason=event.reason,
        sequence=stream_sequence,
    )


class SetWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Define a webhook, or replace its definition; one that is paused or disabled stays so."""

    definition: WebhookDefinition
    reason: str = ""

    def __post_init__(self) -> None:
        """Keep the definition in the form that is stored. Raises: InvalidInputError, InvalidTokenError."""
        msgspec.structs.force_setattr(self, "definition", checked_definition(self.definition))


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Let no event match any more."""

    reason: str = ""


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Let events match again."""

    reason: str = ""


class Rotate(msgspec.Struct, frozen=True, kw_only=True):
    """Sign with another secret."""

    secret: str  #: a reference to it
    keep_old_s: float = 24 * 3600.0  #: seconds for which the old one signs, too
    reason: str = ""


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a delivery failed several times."""

    why: str


class Succeed(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a delivery arrived."""


class Disable(msgspec.Struct, frozen=True, kw_only=True):
    """Stop the webhook, because its receiver wants no messages any more."""

    why: str


WebhookCommand = SetWebhook | Pause | Resume | Rotate | Fail | Succeed | Disable | Remove


def decide(name: str, webhook: Webhook | None, command: WebhookCommand, stamp: Stamp) -> WebhookEvent | None:
    """Return the event that follows from a command; None: nothing would change.

    Raises: WebhookNotFoundError for a webhook that is not set, RefusedError for a command that is not possible now,
    InvalidInputError; AccessDeniedError, also for a target task of which the caller may not enqueue jobs.
    """
    if stamp.authority is not None:
        _permit(stamp.authority, command)
    if webhook is not None and webhook.status == "removed":
        webhook = None
    fact: dict[str, Any] = {"webhook": name, **stamp.fact}
    if isinstance(command, SetWebhook):
        return _set(webhook, command, fact)
    if webhook is None:
        raise WebhookNotFoundError(name)
    # The state as it is; the changes of the event replace parts of it below.
    fact |= {"definition": webhook.definition, "status": webhook.status, "since": webhook.since}
    fact["failing_since"] = webhook.failing_since
    match command:
        case Pause(reason=reason):
            if not webhook.is_active:
                raise RefusedError(f"webhook {name} is {webhook.status} already: there is nothing to pause")
            return WebhookPaused(**_but(fact, status="paused", since=0, reason=reason))
        case Resume(reason=reason):
            if webhook.is_active:
                raise RefusedError(f"webhook {name} is active: there is nothing to resume")
            return WebhookResumed(**_but(fact, status="active", since=0, failing_since=None, reason=reason))
        case Rotate():
            return _rotated(webhook, command, fact, stamp.at)
        case Remove(reason=reason):
            return WebhookRemoved(**_but(fact, status="removed", since=0, reason=reason))
        case Fail() | Succeed() | Disable():
            return _heard(webhook, command, fact, stamp.at) if webhook.is_active else None


def _permit(principal: Principal, command: WebhookCommand) -> None:
    principal.require_everywhere("manage")
    if isinstance(command, SetWebhook) and command.definition.target.task:
        principal.require("queue")


def _but(fact: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**fact, **changes}


def _set(webhook: Webhook | None, command: SetWebhook, fact: dict[str, Any]) -> WebhookSet | None:
    if webhook is not None and webhook.definition == command.definition:
        return None
    is_moved = webhook is None or webhook.definition.target != command.definition.target
    return WebhookSet(
        **fact,
        definition=command.definition,
        status="active" if webhook is None else webhook.status,
        failing_since=None if is_moved or webhook is None else webhook.failing_since,
        reason=command.reason,
    )


def _rotated(webhook: Webhook, command: Rotate, fact: dict[str, Any], now: datetime) -> WebhookRotated:
    if not 0 <= command.keep_old_s <= _KEEP_OLD_S_MAX:
        raise InvalidInputError(
            f"keep_old_s must be from 0 to {_KEEP_OLD_S_MAX:,.0f}, got {command.keep_old_s!r}"
        )
    before = webhook.definition
    if command.secret in before.secrets[:1]:
        raise RefusedError(f"webhook {webhook.name} signs with that secret already: name another one")
    old = before.secrets[:1] if command.keep_old_s else ()
    until = now + timedelta(seconds=command.keep_old_s) if old else None
    definition = checked_definition(replace(before, secrets=(command.secret, *old), old_secret_until=until))
    return WebhookRotated(**_but(fact, definition=definition, reason=command.reason))


def _heard(
    webhook: Webhook, command: Fail | Succeed | Disable, fact: dict[str, Any], now: datetime
) -> WebhookEvent | None:
    """Return the event that follows from the end of a delivery."""
    since = webhook.failing_since
    ended = _but(fact, status="disabled", since=0)
    match command:
        case Succeed():
            return None if since is None else WebhookRecovered(**_but(fact, failing_since=None))
        case Disable(why=why):
            return WebhookDisabled(**ended, reason=why)
        case Fail(why=why):
            if since is None:
                return WebhookFailing(**_but(fact, failing_since=now, reason=why))
            if now - since < timedelta(seconds=FAILING_S_MAX):
                return None
            return WebhookDisabled(
                **ended, reason=f"nothing but failures since {shown_time(since)}; the newest: {why}"
            )


def _words(event: WebhookEvent) -> str:
    why = f": {event.reason}" if event.reason else ""
    match event:
        case WebhookSet(definition=definition):
            return f"{filter_words(definition)} to {target_words(definition.target)}{why}"
        case WebhookRotated(definition=definition):
            until = definition.old_secret_until
            return (f"the old secret signs until {shown_time(until)}" if until is not None else "") + why
        case _:
            return event.reason


def _check(before: Webhook | None, event: WebhookEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check the rules that hold for every version."""
    kind = WEBHOOK.type_of(event)
    if before is not None and evolve(None, event, before.sequence) == before:
        return  # an archive run appends the current state once more
    if before is None or before.status == "removed":
        if not isinstance(event, WebhookSet):
            yield "transition", f"`{kind}` of a webhook that nobody set"
        return
    if not isinstance(event, WebhookSet | WebhookRotated) and event.definition != before.definition:
        yield "transition", f"`{kind}` changes what the webhook does, which only `set` and `rotated` may"
    is_term_kept = isinstance(event, WebhookRotated | WebhookFailing | WebhookRecovered)
    if is_term_kept and (event.status, event.since) != (before.status, before.since):
        yield "transition", f"`{kind}` changes whether or since when events match"
    yield from _check_status(before, event, kind)


def _check_status(before: Webhook, event: WebhookEvent, kind: str) -> Iterator[Broken]:
    needed: dict[type[WebhookEvent], bool] = {
        WebhookPaused: before.is_active,
        WebhookResumed: not before.is_active,
        WebhookFailing: before.is_active and before.failing_since is None,
        WebhookRecovered: before.is_active and before.failing_since is not None,
        WebhookDisabled: before.is_active,
    }
    if not needed.get(type(event), True):
        yield "transition", f"`{kind}` of a webhook that was {before.status}"
    wanted = _STATUS.get(type(event))
    if wanted is not None and (event.status, event.since) != (wanted, 0):
        yield "transition", f"`{kind}` says that the webhook is {event.status}"


_STATUS: Final[dict[type[WebhookEvent], Status]] = {
    WebhookPaused: "paused",
    WebhookDisabled: "disabled",
    WebhookResumed: "active",
    WebhookRemoved: "removed",
}


def _again(event: WebhookEvent, stream_sequence: int) -> WebhookEvent:
    """Return an event that repeats the state, in the same term."""
    return replace(event, since=evolve(None, event, stream_sequence).since)


WEBHOOK: Aggregate[WebhookEvent, Webhook] = Aggregate(
    "webhook",
    ("webhook",),
    WebhookEvent,
    state=Webhook,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=WebhookRemoved,
    again=_again,
)
