"""Signals that rules of routes send to runs: to which run, which value, and why one cannot be sent.

A signal that cannot be sent is no error of the delivery: the reason is recorded with it, and the rest is made.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import Enqueue, GiveSignal, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    ErasedError,
    IllegalTransitionError,
    InvalidError,
    JobNotFoundError,
)
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.hooks.pointers import NOTHING
from jobledger.ledger.model.hooks.route import RouteRule
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.runs.errors import SignalKnownError, UnknownSignalError
from jobledger.ledger.model.subjects import JobRef, is_own_queue
from jobledger.ledger.protocols import AnyJob, NamesJob
from jobledger.ledger.sent_signals import SignalClient, check_signal


class RunClient(SignalClient, Protocol):
    """A client that finds a run by its id."""

    async def job(self, job: AnyJob, /) -> NamesJob:
        """Return a job that exists. Raises: JobNotFoundError, AmbiguousIdError, InvalidTokenError."""
        ...


class RunSignal(NamedTuple):
    """A signal that is to be sent, or why it is not."""

    ref: JobRef | None = None  #: the run; None where the delivery names none
    command: GiveSignal | None = None
    refused: str = ""


async def signal_for(
    client: RunClient, rule: RouteRule, run: str, signal_id: str, *, value: object, start: Enqueue | None
) -> RunSignal:
    """Return the signal that a rule sends because of a delivery, its value stored where that is large.

    `run`: the id of the run, "" if the delivery has no valid id. `start`: the command that begins it.

    Raises: UnreachableError, LedgerFullError.
    """
    if not run:
        return RunSignal(refused="it has no id of a run where the rule looks")
    ref = start.ref if start is not None else JobRef(queue=rule.queue, job_id=run) if rule.queue else None
    if value is NOTHING:
        return RunSignal(ref, refused="it has no value where the rule looks")
    try:
        ref = ref or (await client.job(run)).ref
        if is_own_queue(ref.queue):
            return RunSignal(ref, refused="the run is one of the ledger's own")
        text = encode_value(value, what=f"value of signal {rule.signal}")
        key = await _check(client, ref, rule.signal, text, start)
        what = f"value of signal {rule.signal}"
        stored, reference = await client.inputs.put(text, what=what, key=key)
    except (InvalidError, JobNotFoundError, AmbiguousIdError, ErasedError) as error:
        return RunSignal(ref, refused=str(error))
    return RunSignal(ref, GiveSignal(name=rule.signal, id=signal_id, value=stored, value_ref=reference))


async def _check(client: RunClient, ref: JobRef, name: str, text: bytes, start: Enqueue | None) -> str:
    """Refuse a value that the run cannot read, as at every door; return the key that seals the run's values.

    Raises: InvalidInputError, UnreachableError.
    """
    job = (await load(client.log, ref)).job
    if job is not None and not job.is_final:
        await check_signal(client, job.task, job.order.version, name, text)
    elif job is None and start is not None:
        await check_signal(client, start.task, start.order.version, name, text)
    order = job.order if job is not None else None if start is None else start.order
    return "" if order is None else order.key


def decide_signal(
    job: Job | None, command: GiveSignal, start: Enqueue | None, stamp: Stamp
) -> tuple[list[JobEvent], str]:
    """Return the events that send a run a signal, `start` before it where there is no run, or why there are none. Pure.

    No events and no reason: the run already has this signal.
    """
    begun: list[JobEvent] = []
    try:
        if job is None:
            if start is None:
                return [], "there is no such run"
            begun = list(decide(None, start, stamp))
            for event in begun:
                job = evolve(job, event, 0)
        return [*begun, *decide(job, command, stamp)], ""
    except SignalKnownError:
        return [], ""
    except IllegalTransitionError as error:
        if job is not None and job.is_final:
            return [], str(UnknownSignalError(job.id, job.state.value, command.name))
        return [], str(error)
