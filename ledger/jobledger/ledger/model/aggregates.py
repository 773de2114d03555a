"""Every aggregate that this version knows, and how a message of any of them is read.

Another one is declared in a module of its own and added to `AGGREGATES`: nothing else lists them.
"""

from __future__ import annotations

import re
import string
from datetime import datetime
from typing import Any, Final, NoReturn

from jobledger.ledger.model import codec
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import MalformedEventError, UnknownEventError
from jobledger.ledger.model.events import Completed, JobEvent, Queued
from jobledger.ledger.model.graphs.stored import GRAPH
from jobledger.ledger.model.hooks.delivery import DELIVERY
from jobledger.ledger.model.hooks.route import ROUTE
from jobledger.ledger.model.hooks.watch import WATCH
from jobledger.ledger.model.hooks.webhook import WEBHOOK
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.key import ACCESS
from jobledger.ledger.model.lifecycle import words
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import FLOW
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.owner import OWNER
from jobledger.ledger.model.queue_pause import QUEUE
from jobledger.ledger.model.reactor import REACTOR
from jobledger.ledger.model.retention import RETENTION
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import Names, aggregate_of, completed_leaf, is_token
from jobledger.ledger.model.unique import UNIQUE
from jobledger.ledger.model.unreadable import UNREADABLE


class _Jobs(Aggregate[JobEvent, Job]):
    """Jobs: like every aggregate, but with faster code for subjects and bytes, since every job needs them."""

    # The functions themselves: a method around each would cost a call, three times an append.
    chain_of = staticmethod(Names.chain_of)  # type: ignore[assignment]
    subject = staticmethod(Names.event)  # type: ignore[assignment]
    encode = staticmethod(codec.encode)  # pyright: ignore[reportAssignmentType]


JOB: Final = _Jobs("job", ("queue", "job"), JobEvent, state=Job, evolve=evolve, words=words)

#: By name, the second word of a ledger subject.
AGGREGATES: Final[dict[str, Aggregate[Any, Any]]] = {
    each.name: each
    for each in (
        JOB,
        LOCK,
        REACTOR,
        UNREADABLE,
        FLOW,
        LIMIT,
        UNIQUE,
        QUEUE,
        SCHEDULE,
        ACCESS,
        WEBHOOK,
        WATCH,
        ROUTE,
        DELIVERY,
        GRAPH,
        RETENTION,
        OWNER,
    )
}


def aggregate_for(event: Envelope) -> Aggregate[Any, Any]:
    """Return the aggregate that a fact belongs to."""
    kind = type(event)
    return next(each for each in AGGREGATES.values() if kind in each.types.values())


def event_name(aggregate: str, event_type: str) -> str:
    """Return the name of a type of event that is unique among all aggregates.

    It is the type as written in `type`, or `<aggregate>.<type>` if jobs or several other aggregates have that type,
    too.
    """
    owners = [name for name, each in AGGREGATES.items() if event_type in each.types]
    return event_type if len(owners) == 1 or aggregate == JOB.name else f"{aggregate}.{event_type}"


def chain_named(subject: str) -> str:
    """Return the chain that a stored subject names, in words: `<queue>/<job id>`, `lock a/b`; "" without one."""
    aggregate = AGGREGATES.get(aggregate_of(subject))
    key = () if aggregate is None else aggregate.key_in(subject)
    if aggregate is None or len(key) < len(aggregate.key) or not all(map(is_token, key)):
        return ""
    return "/".join(key) if aggregate is JOB else aggregate.label(key)


_TAGS: Final = {cls: tag for tag, cls in JOB.types.items()}
_LONGER: Final = frozenset({Queued, Completed})  # types whose subjects may have more words than the tag
#: One token each: an id with a wildcard in it would be a filter of other jobs' chains. Only for the few subjects whose
#: last words name a job; for others `read_job_event` looks at queue and id, which costs a third. Possessive, since no
#: token can end before its dot: without that a match costs twice as much.
_OF_A_JOB: Final = re.compile(
    r"[^.]++\.job\.[\w-]{1,64}+\.[\w-]{1,64}+\."
    r"(?:[a-z_]++(?:\.[a-z]++)?|completed\.child\.[\w-]{1,64}+(?:\.limited)?)",
    flags=re.ASCII,
)
_OF_A_TOKEN: Final = f"{string.ascii_letters}{string.digits}_-"
#: A table that maps bytes of tokens to letters, and other bytes to no letter. Twice as fast as deleting the former.
_LETTERS: Final = bytes(ord("a" if chr(byte) in _OF_A_TOKEN else " ") for byte in range(256))
_TOKEN_CHARACTERS_MAX: Final = 64


def read_message(subject: str, data: bytes, stream_sequence: int, stored_at: datetime) -> Message:
    """Return the message under `subject`: a job's event as `StoredEvent`, another aggregate's as a plain `Message`.

    It is `Unreadable` if it is no event: anybody who may publish to the stream can put such a message there, so no
    reader stops at it.

    Raises: UnknownEventError for an event of a newer version, since any result without that event would be wrong.
    """
    try:
        if aggregate_of(subject) == JOB.name:
            event = read_job_event(subject, data, stream_sequence)
            return StoredEvent(
                event=event, data=data, stream_sequence=stream_sequence, stored_at=stored_at, subject=subject
            )
        message = Message(data=data, stream_sequence=stream_sequence, stored_at=stored_at, subject=subject)
        _check_other(message)
    except MalformedEventError as error:
        return Unreadable(
            data=data, stream_sequence=stream_sequence, stored_at=stored_at, subject=subject, why=str(error)
        )
    return message


def read_job_event(subject: str, data: bytes, stream_sequence: int) -> JobEvent:
    """Return the event of a job that is stored under `subject`: all that a worker needs of a dispatch.

    Raises: UnknownEventError for an event of a newer version, MalformedEventError for anything else.
    """
    event = codec.decode(data, stream_sequence=stream_sequence, subject=subject)
    queue, job, kind = event.queue, event.job, type(event)
    leaf = _TAGS[kind] if kind not in _LONGER else _leaf_of(event)
    root = subject.removesuffix(f".job.{queue}.{job}.{leaf}")
    if (
        root == subject  # an event with another end of its subject
        or not root
        or "." in root
        or not (queue + job).encode().translate(_LETTERS).isalnum()
        or not 0 < len(queue) <= _TOKEN_CHARACTERS_MAX
        or not 0 < len(job) <= _TOKEN_CHARACTERS_MAX
        or (kind is Completed and leaf.count(".") > 1 and _OF_A_JOB.fullmatch(subject) is None)
    ):
        _refuse_place(subject, stream_sequence)
    return event


def _leaf_of(event: JobEvent) -> str:
    """Return the last words of an event's subject, for a type that may have several."""
    if isinstance(event, Queued):
        return f"queued.{event.priority}"
    return completed_leaf(event) if isinstance(event, Completed) else _TAGS[type(event)]


def _check_other(message: Message) -> None:
    """Prove that a message is an event of its aggregate.

    Raises: as `codec.decode`.
    """
    subject, sequence = message.subject, message.stream_sequence
    aggregate = AGGREGATES.get(aggregate_of(subject))
    if aggregate is not None:
        if not aggregate.is_at(subject, aggregate.decode(message)):
            _refuse_place(subject, sequence)
    elif codec.newer(message.data, subject, ()):
        raise UnknownEventError(
            f"{subject[:200]!r} at stream sequence {sequence} is about something that this version does not know: "
            "upgrade jobledger to read this ledger",
            stream_sequence=sequence,
            next_sequence=sequence + 1,
        )
    else:
        raise MalformedEventError(
            f"the message at stream sequence {sequence} is stored as {subject[:200]!a}, which is no subject of an event"
        )


def _refuse_place(subject: str, stream_sequence: int) -> NoReturn:
    raise MalformedEventError(
        f"the message at stream sequence {stream_sequence} is stored as {subject[:200]!a}, its own fields say otherwise"
    )
