"""Signals sent to runs, checked by announcements of workers; `runs.signals` has those of application code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from jobledger.ledger.model.chain import JobView, load, transact
from jobledger.ledger.model.commands import GiveSignal
from jobledger.ledger.model.decision_parts.runs import SIGNALS_MAX
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    PermissionRefusedError,
    RefusedError,
    UnreachableError,
)
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.errors import SignalKnownError, UnknownSignalError
from jobledger.ledger.model.subjects import JobRef, is_own_queue
from jobledger.ledger.protocols import Client
from jobledger.ledger.tasks import Task

if TYPE_CHECKING:
    from jobledger.ledger.additions.announced import AnnouncedTask
    from jobledger.ledger.named.book import AnnouncedTasks

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

#: Most reads of a run that was just made (a replica may lag), and seconds by which the pause grows each time.
_LOOKS_MAX: Final = 8
_LAG_S: Final = 0.02


class AnySignal(Protocol[T_contra]):
    """A named message and the type of its value; see `runs.signals.Signal`."""

    @property
    def name(self) -> str:
        """What it is about."""
        ...

    def encode(self, value: T_contra, /) -> bytes:
        """Return a value as JSON text. Raises: InvalidInputError for one of another type."""
        ...


class SignalClient(Client, Protocol):
    """A client that knows the announcements of workers."""

    @property
    def announced(self) -> AnnouncedTasks:
        """The tasks that workers ever announced."""
        ...


def takes_signals(job: Job) -> bool:
    """Return whether a job can be sent a signal of any name."""
    return not (job.is_final or is_own_queue(job.queue) or len(job.signals) >= SIGNALS_MAX)


async def announced_workflow(client: SignalClient, task: str, version: str) -> AnnouncedTask | None:
    """Return the announced workflow of a run; None if none was announced, or another version last.

    Raises: UnreachableError.
    """
    from jobledger.ledger.named.book import find_announced  # noqa: PLC0415 - others need nothing of it

    try:
        found = await find_announced(client.patience, client.announced, task, unknown_ok=True)
    except PermissionRefusedError:  # the client may only send signals: then the wait checks the value
        return None
    return found if found.is_known and found.version == version else None


async def check_signal(client: SignalClient, task: str, version: str, name: str, value: bytes) -> None:
    """Refuse a value, JSON text, that no wait of a workflow for a signal of that name can read.

    A signal that no worker announced passes: then the wait refuses a wrong value, and the run waits on.

    Raises: InvalidInputError, UnreachableError.
    """
    workflow = await announced_workflow(client, task, version)
    signal = None if workflow is None else workflow.signals.get(name)
    if signal is not None:
        signal.check(value)


async def give_signal(
    client: SignalClient,
    ref: JobRef,
    signal: AnySignal[T],
    value: T,
    *,
    id: str = "",  # noqa: A002 - the public name of the option
    by: str = "",
    starts: Task[..., Any] | None = None,
    begin: Callable[[], Awaitable[Any]] | None = None,
) -> bool:
    """Send a run a signal; see `Ledger.signal`. `begin` makes the run, of task `starts`, unless it exists."""
    if is_own_queue(ref.queue):  # a batch that gets a wrong number of jobs cannot end
        raise RefusedError(
            f"job {ref.job_id} is one of the ledger's own, which takes no signals: close or cancel a batch instead"
        )
    command = GiveSignal(name=signal.name, id=id)  # refused before a large value is stored
    text = signal.encode(value)
    view = await client.patience.read(lambda: load(client.log, ref))
    what = f"value of signal {signal.name}"
    if view.job is None:
        if starts is not None:
            await check_signal(client, starts.name, starts.version, signal.name, text)
        if begin is not None:
            client.inputs.fits_inline(text, what=what)  # one that is too large begins no run
            view = await _begun(client, ref, begin)
    elif not view.job.is_final:
        await check_signal(client, view.job.task, view.job.order.version, signal.name, text)
    key = "" if view.job is None else view.job.order.key
    stored, reference = await client.patience.read(lambda: client.inputs.put(text, what=what, key=key))
    command = msgspec.structs.replace(command, value=stored, value_ref=reference)
    return await send(client, ref, command, by=by, known=view if view.job else None)


async def _begun(client: Client, ref: JobRef, begin: Callable[[], Awaitable[Any]]) -> JobView:
    """Begin a missing run, and return it, since it tells whether values are sealed, and under which key.

    Raises: as `begin`; UnreachableError.
    """
    for look in range(_LOOKS_MAX):
        await asyncio.sleep(_LAG_S * look)
        await begin()  # an existing run does not change
        view = await client.patience.read(lambda: load(client.log, ref))
        if view.job is not None:
            return view
    raise UnreachableError(f"job {ref.job_id} exists and cannot be read yet: send the signal again")


async def send(
    client: Client, ref: JobRef, command: GiveSignal, *, by: str = "", known: JobView | None = None
) -> bool:
    """Record a signal whose value is stored; return False if the run already has a signal of that id.

    `known`: the run read a moment ago, which saves a read.

    Raises: UnknownSignalError for a run that has ended, JobNotFoundError, UnreachableError.
    """
    try:
        await client.patience.append(
            lambda: transact(client.log, ref, command, lambda: client.stamp(by), known=known),
            job_id=ref.job_id,
            doing="was changed",
        )
    except SignalKnownError:
        return False
    except IllegalTransitionError:
        job = (await client.patience.read(lambda: load(client.log, ref))).job
        if job is None or not job.is_final:
            raise
        if command.id and any(each.id == command.id and not each.refused for each in job.signals):
            return False
        raise UnknownSignalError(job.id, job.state.value, command.name) from None
    client.hints.tell_resume(ref)
    return True
