"""Sending signals to runs. What a signal is, in the code of an application, is in `runs.signals`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from jobledger.ledger.handle import execute
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import GiveSignal
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobNotFoundError,
    RefusedError,
    UnreachableError,
)
from jobledger.ledger.model.runs.errors import SignalKnownError, UnknownSignalError
from jobledger.ledger.model.subjects import JobRef, is_own_queue
from jobledger.ledger.parts import Client

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

#: A run that was just made is read again so often, with so much more of a pause each time: a replica may lag.
_LOOKS_MAX: Final = 8
_LAG_S: Final = 0.02


class AnySignal(Protocol[T_contra]):
    """A named message and the type of what it says; see `runs.signals.Signal`."""

    @property
    def name(self) -> str:
        """What it is about."""
        ...

    def encode(self, value: T_contra, /) -> bytes:
        """Return a value as JSON text. Raises: InvalidInputError for one of another type."""
        ...


async def give_signal(
    client: Client,
    ref: JobRef,
    signal: AnySignal[T],
    value: T,
    *,
    id: str = "",  # noqa: A002 - the public name of the option
    by: str = "",
    begin: Callable[[], Awaitable[Any]] | None = None,
) -> bool:
    """Send a run a signal; see `Ledger.signal`. `begin` makes the run, unless it exists."""
    if is_own_queue(ref.queue):  # a batch that is told another number of jobs than it has cannot end
        raise RefusedError(
            f"job {ref.job_id} is one of the ledger's own, which takes no signals: close or cancel a batch instead"
        )
    command = GiveSignal(name=signal.name, id=id)  # refused before a large value is stored
    text = signal.encode(value)
    what = f"value of signal {signal.name}"
    stored, reference = await client.patience.read(lambda: client.inputs.put(text, what=what))
    command = msgspec.structs.replace(command, value=stored, value_ref=reference)
    if begin is None:
        return await send(client, ref, command, by=by)
    for look in range(_LOOKS_MAX):
        try:
            return await send(client, ref, command, by=by)
        except JobNotFoundError:
            await asyncio.sleep(_LAG_S * look)
            await begin()  # leaves a run that exists as it is
    raise UnreachableError(f"job {ref.job_id} exists and cannot be read yet: send the signal again")


async def send(client: Client, ref: JobRef, command: GiveSignal, *, by: str = "") -> bool:
    """Record a signal whose value is stored; False for an id that the run was sent before.

    Raises: UnknownSignalError for a run that has ended, JobNotFoundError, UnreachableError.
    """
    try:
        await execute(client, ref, command, by=by)
    except SignalKnownError:
        return False
    except IllegalTransitionError:
        job = (await client.patience.read(lambda: load(client.log, ref))).job
        if job is None or not job.is_final:
            raise
        if command.id and any(each.id == command.id for each in job.signals):
            return False
        raise UnknownSignalError(job.id, job.state.value, command.name) from None
    client.hints.tell_resume(ref)
    return True
