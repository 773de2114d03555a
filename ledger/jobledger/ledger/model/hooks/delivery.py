"""The events of one delivery to a route, the state they add up to, and what may follow. Pure.

A delivery is an aggregate of its own, named by its route and the provider's id: so a second delivery of that id is
refused by the condition of its first append, and no two deliveries wait for each other. Each of its events says the
whole state, and is appended in one batch with the first events of the jobs that it names. Source: ADR 032.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.hooks.errors import DeliveryNotFoundError
from jobledger.ledger.model.rights.marks import SAID_HEADERS
from jobledger.ledger.model.subjects import is_token

_GIVEN_MAX: Final = 200


class MatchedJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that a rule made of a delivery, or a run that it sent a signal."""

    rule: str  #: the rule's name
    queue: str  #: the job's queue
    job: str  #: its id
    given: bool = (
        False  #: True: the id is not derived: the body or the task gave it, or the derived id was taken
    )
    signal: str = ""  #: the signal that the run was sent; "": the rule sends none
    refused: str = ""  #: the reason why the signal was not sent, and no run begun; "": it was sent

    @property
    def words(self) -> str:
        """The job or signal in words, for a person."""
        where = f"{self.queue}/{self.job}" if self.queue and self.job else self.job or "no run"
        if not self.signal:
            return where
        return f"signal {self.signal} to {where}" + (f": not sent, {self.refused}" if self.refused else "")


def made_words(matched: Sequence[MatchedJob]) -> str:
    """Return the numbers of jobs and signals made of a delivery: "2 jobs, 1 signal, 1 signal not sent"."""
    counts = {
        "job": sum(not each.signal for each in matched),
        "signal": sum(bool(each.signal and not each.refused) for each in matched),
        "signal not sent": sum(bool(each.refused) for each in matched),
    }
    said = [f"{count:,} {_plural(what, count)}" for what, count in counts.items() if count]
    return ", ".join(said) or "0 jobs"


def _plural(what: str, count: int) -> str:
    word, _, rest = what.partition(" ")
    return f"{word}{'' if count == 1 else 's'} {rest}".rstrip()


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a delivery."""

    route: str  #: the route it came to
    delivery: str  #: the provider's id where that can be part of a subject, else a hash of it
    number: Whole = 1  #: number of this processing, from 1
    given: str = ""  #: the provider's id if `delivery` is a hash of it, cut at 200 characters
    sha256: str  #: hex digest of the body, under which it is kept
    size_bytes: Whole  #: of the body
    kept_until: Moment | None = None  #: until when the body is kept; none: it is not kept
    scheme: str = ""  #: the scheme that verified it; "": a program emitted it with a client
    secret: Whole = 0  #: number of the matching secret, from 1; 0: no secret was needed
    headers: Annotated[
        Mapping[str, str], SAID_HEADERS
    ] = {}  #: headers that rules look at, by their names in lower case
    definition: Whole  #: stream sequence of the route's `set` whose rules were matched
    matched: tuple[MatchedJob, ...] = ()  #: the jobs and signals in the same batch; empty: no rule matched


class Received(_Fact, frozen=True, kw_only=True, tag="received", gc=False):
    """A delivery was verified, and recorded together with the jobs and signals that its route makes of it."""


class Retried(_Fact, frozen=True, kw_only=True, tag="retried", gc=False):
    """Somebody had the delivery processed once more, by the present rules."""

    reason: str = ""  #: why, as the person said


DeliveryEvent = Received | Retried


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery after its newest event; the fields are those of the event."""

    route: str
    delivery: str
    number: int
    given: str
    sha256: str
    size_bytes: int
    kept_until: Moment | None
    scheme: str
    secret: int
    headers: Mapping[str, str]
    definition: int
    matched: tuple[MatchedJob, ...]
    at: Moment  #: of the newest event, by its appender's clock
    by: str


_STATE: Final = tuple(Delivery.__struct_fields__)


def evolve(_before: Delivery | None, event: DeliveryEvent, _stream_sequence: int) -> Delivery:
    """Return the delivery after `event`, whatever came before it."""
    return Delivery(**{name: getattr(event, name) for name in _STATE})


class ArrivedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A request that came in, in the form in which it is recorded."""

    given: str
    sha256: str
    size_bytes: int
    kept_until: datetime | None = None
    scheme: str = ""
    secret: int = 0
    headers: Mapping[str, str] = {}


class Receive(msgspec.Struct, frozen=True, kw_only=True):
    """Record a delivery. If its name is a hash of its body, an equal one after `again_after_s` counts as another."""

    arrived: ArrivedDelivery
    definition: int
    matched: Sequence[MatchedJob]
    again_after_s: int = 0  #: 0: its name stands for the same delivery for ever


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a delivery was processed once more."""

    definition: int
    matched: Sequence[MatchedJob]
    reason: str = ""


def next_number(before: Delivery | None) -> int:
    """Return the number of the next processing of a delivery, from 1."""
    return 1 if before is None else before.number + 1


def is_repeat(before: Delivery | None, again_after_s: int, now: datetime) -> bool:
    """Return whether a delivery of a known name repeats the earlier one."""
    if before is None:
        return False
    return not again_after_s or now < before.at + timedelta(seconds=again_after_s)


def decide(
    route: str, delivery: str, before: Delivery | None, command: Receive | Retry, stamp: Stamp
) -> DeliveryEvent | None:
    """Return the event that follows from a command; None: the delivery was received before.

    Raises: DeliveryNotFoundError for the repetition of a delivery that never was received; AccessDeniedError.
    """
    stamp.require_everywhere("queue" if isinstance(command, Receive) else "manage")
    fact: dict[str, Any] = {
        "at": stamp.at,
        "by": stamp.by,
        "trace": stamp.trace,
        "route": route,
        "delivery": delivery,
        "number": next_number(before),
        "definition": command.definition,
        "matched": tuple(command.matched),
    }
    match command:
        case Receive(arrived=arrived):
            if is_repeat(before, command.again_after_s, stamp.at):
                return None
            return Received(**fact, **msgspec.structs.asdict(arrived))
        case Retry(reason=reason):
            if before is None:
                raise DeliveryNotFoundError(route, delivery)
            said = {name: getattr(before, name) for name in ArrivedDelivery.__struct_fields__}
            return Retried(**fact, **said, reason=reason)


def named(given: str) -> tuple[str, str]:
    """Return the name of a delivery's chain for the provider's id; also that id if the two differ, else ""."""
    if is_token(given):
        return given, ""
    return f"h-{_hash(given)}", given[:_GIVEN_MAX]


def job_id(route: str, delivery: str, rule: str, number: int) -> str:
    """Return the id of the job that a rule makes of a delivery when it is processed for the `number`th time."""
    again = f"-r{number - 1}" if number > 1 else ""
    return f"w-{_hash(f'{route}/{delivery}/{rule}')}{again}"


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _words(event: DeliveryEvent) -> str:
    made = made_words(event.matched) if event.matched else "no rule holds"
    what = f"{event.scheme or 'emitted'}, {event.size_bytes:,} bytes, {made}"
    return f"{what}: {event.reason}" if isinstance(event, Retried) and event.reason else what


def _check(before: Delivery | None, event: DeliveryEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check that the number is one higher, the bytes are the same, and the ids of jobs follow from its name."""
    number = 0 if before is None else before.number
    if event.number != number + 1:
        yield (
            "transition",
            f"`{DELIVERY.type_of(event)}` has the number {event.number} and does not follow on {number}",
        )
    if isinstance(event, Retried) and before is not None and event.sha256 != before.sha256:
        yield "transition", "`retried` is about other bytes than the delivery had"
    for each in event.matched:
        if not each.given and each.job != job_id(event.route, event.delivery, each.rule, event.number):
            yield "transition", f"job {each.job!a} has not the id that follows from rule {each.rule!a}"
            break


def _keeps(_event: DeliveryEvent, _stream_sequence: int) -> ArchiveBound | None:
    """Keep nothing: the jobs that the delivery made have chains of their own."""
    return None


DELIVERY: Aggregate[DeliveryEvent, Delivery] = Aggregate(
    "delivery",
    ("route", "delivery"),
    DeliveryEvent,
    state=Delivery,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
)
