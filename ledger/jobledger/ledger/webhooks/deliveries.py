"""Which job follows from an event for a webhook, and its first event: a plain conditional append under a derived id.

The id is `<webhook>-<stream sequence of the event>`, and `-r<n>` behind it for the n-th redelivery; that of a task's job
begins with `webhook-`, since an application's own jobs are in its queue. Whoever appends first makes the job; everybody
else is refused by the id. So an event may be handed out any number of times, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.derived_jobs import author_of, begin_derived
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.envelope import PayloadRef
from jobledger.ledger.model.errors import ErasedError, PayloadTooLargeError
from jobledger.ledger.model.events import Event, Order
from jobledger.ledger.model.hooks.definition import WATCH_EVENTS, WebhookDefinition
from jobledger.ledger.model.hooks.watch import WATCH
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.reserved_ids import instead_of
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE, JobRef, Names, aggregate_of
from jobledger.ledger.protocols import Client
from jobledger.ledger.subscriptions.filter import EventFilter
from jobledger.ledger.webhooks.message import told_of

DELIVER: Final = "deliver"  #: the built-in task that posts an event
#: The limit whose keys are the names of webhooks: at most `SLOTS` posts of one webhook are under way at once, so a slow
#: receiver delays nobody else.
LIMIT: Final = DELIVERIES_QUEUE
SLOTS: Final = 4
#: One try and as many more as the table of delays has.
ATTEMPTS_MAX: Final = 8
#: How many webhooks in a row may lead to each other through tasks: A's job makes B's, B's makes A's.
GENERATIONS_MAX: Final = 8
_TIMEOUT_S: Final = 60.0
_TASK_ATTEMPTS_MAX: Final = 5
_TASK_PREFIX: Final = "webhook-"
_ID: Final = re.compile(
    _TASK_PREFIX + r"(?P<webhook>.+)-(?P<sequence>\d{1,19})(?:-r(?P<again>\d{1,6}))?", flags=re.ASCII
)


class DeliveryName(NamedTuple):
    """What the id of a webhook's job says."""

    webhook: str
    sequence: int  #: stream sequence of the event that the job is about
    again: int  #: the number of the redelivery; 0: the first delivery


class DeliverInput(msgspec.Struct, frozen=True):
    """The input of a job of task `deliver`: the rest is read from the ledger when it is sent."""

    webhook: str
    sequence: int


def job_id(webhook: str, sequence: int, again: int = 0) -> str:
    """Return the id of the job that a webhook has for an event; `again`: the number of the redelivery."""
    return f"{webhook}-{sequence}" + (f"-r{again}" if again else "")


def named(job: str) -> DeliveryName | None:
    """Return the parts of an id of the form that webhooks give to jobs of a task; other jobs may have such ids, too."""
    found = _ID.fullmatch(job)
    if found is None:
        return None
    return DeliveryName(found["webhook"], int(found["sequence"]), int(found["again"] or 0))


def subjects(names: Names, definition: WebhookDefinition) -> tuple[str, ...]:
    """Return the filters of what may match; the server filters by them, `matches` tells the rest."""
    watched = [event for event in definition.events if event in WATCH_EVENTS]
    types = tuple(event for event in definition.events if event not in WATCH_EVENTS)
    found = [WATCH.of_type(names, event.removeprefix("watch.")) for event in watched]
    if types:
        wanted = EventFilter(types=types, queue=definition.queue or None, job=definition.job or None)
        found += wanted.subjects(names)
    return tuple(found)


def matches(definition: WebhookDefinition, message: Message) -> bool:
    """Return whether an event that the server let through is one for the webhook. Deliveries never are."""
    if isinstance(message, StoredEvent):
        event = message.event
        return event.queue != DELIVERIES_QUEUE and definition.task in {"", event.task}
    if aggregate_of(message.subject) != WATCH.name:
        return False
    return not definition.queue or WATCH.decode(message).definition.queue == definition.queue


async def generation(log: Log, message: Message, webhooks: Mapping[str, object]) -> int:
    """Return how many webhooks in a row led to the job of an event, counted up to `GENERATIONS_MAX`.

    `webhooks`: by name, those whose targets are tasks. A job that the code of a job made counts as new.
    """
    for count in range(GENERATIONS_MAX):
        if not isinstance(message, StoredEvent):
            return count
        made = named(message.event.job)
        if made is None or made.webhook not in webhooks or not await _is_by(log, message.event, made.webhook):
            return count
        source = await log.get(made.sequence)
        if source is None:  # in an archive, or a replica that lags
            return count + 1
        message = source
    return GENERATIONS_MAX


async def _is_by(log: Log, event: Event, name: str) -> bool:
    """Return whether a webhook made the job of an event; an application may give its own jobs such ids."""
    job = (await load(log, JobRef(queue=event.queue, job_id=event.job))).job
    return job is None or job.created_by in _own(name)


def _author(name: str) -> str:
    return f"webhook:{name}"


def _own(name: str) -> frozenset[str]:
    """Return the authors that a webhook's jobs may have in their first events; "" is an archived job: unknown."""
    return frozenset(("", _author(name)))


def target_of(name: str, definition: WebhookDefinition, sequence: int, again: int = 0) -> JobRef:
    """Return which job is that of an event."""
    prefix = _TASK_PREFIX if definition.target.task else ""
    return JobRef(
        queue=definition.target.queue or DELIVERIES_QUEUE, job_id=prefix + job_id(name, sequence, again)
    )


async def made(
    client: Client, name: str, definition: WebhookDefinition, sequence: int, again: int = 0
) -> Job | None:
    """Return the job that a webhook made of an event; None where it made none. Raises: UnreachableError."""
    ref = target_of(name, definition, sequence, again)
    for each in (ref, instead_of(ref)):
        job = (await load(client.log, each)).job
        if job is not None and job.created_by in _own(name):
            return job
    return None


async def make(
    client: Client, name: str, definition: WebhookDefinition, message: Message, again: int = 0
) -> bool:
    """Append the first event of the job that follows from an event; return whether it is new.

    Raises: LedgerFullError, UnreachableError, CorruptLedgerError.
    """
    ref = target_of(name, definition, message.stream_sequence, again)
    if definition.target.task:
        key = message.event.key if isinstance(message, StoredEvent) else ""  # its data is the same owner's
        try:
            value, reference = await _task_input(client, definition, message, key)
        except ErasedError:
            return False  # nobody is to hold any more of it
        order = Order(input=value, input_ref=reference, max_attempts=_TASK_ATTEMPTS_MAX, key=key)
        command = Enqueue(ref=ref, task=definition.target.task, order=order)
    else:
        text = msgspec.json.encode(DeliverInput(name, message.stream_sequence))
        order = Order(
            input=msgspec.Raw(text),
            max_attempts=ATTEMPTS_MAX,
            timeout_s=_TIMEOUT_S,
            limits=(f"{LIMIT}:{name}",),
        )
        command = Enqueue(ref=ref, task=DELIVER, order=order)
    own = _own(name)
    begun = await begin_derived(
        client.log, command, lambda: _stamp(client, name, message), lambda first: author_of(first) in own
    )
    return begun.created


def _stamp(client: Client, name: str, message: Message) -> Stamp:
    with acting_for(None):  # the webhook's author had the right, whoever redelivers now
        stamp = client.stamp(_author(name))
    if not isinstance(message, StoredEvent):
        return stamp
    event = message.event
    return msgspec.structs.replace(
        stamp, trace=event.trace, causation=event.job, correlation=event.correlation or event.job
    )


async def _task_input(
    client: Client, definition: WebhookDefinition, message: Message, key: str
) -> tuple[msgspec.Raw, PayloadRef | None]:
    """Return the input of a task: what a receiver would be told; without its parts where it would be too large."""
    told = await told_of(client, message, definition.include, unseals=key != "")
    what = f"the input of task {definition.target.task}"
    try:
        return await client.inputs.put(msgspec.json.encode(told), what=what, key=key)
    except PayloadTooLargeError:
        told = await told_of(client, message)
        told.data["missing"] = list(definition.include)
        return await client.inputs.put(msgspec.json.encode(told), what=what, key=key)
