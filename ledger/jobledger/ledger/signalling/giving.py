"""Sending signals to runs. What a signal is, in the code of an application, is in `runs.signals`."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from jobledger.ledger.handle import execute
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import GiveSignal
from jobledger.ledger.model.errors import IllegalTransitionError, InvalidInputError
from jobledger.ledger.model.runs.errors import SignalKnownError, UnknownSignalError
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.parts import Client

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_ID_MAX: Final = 200  # characters


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
) -> bool:
    """Send a run a signal; see `Ledger.signal`."""
    if len(id) > _ID_MAX:
        raise InvalidInputError(
            f"id of signal {signal.name} has {len(id)} characters and the limit is {_ID_MAX}"
        )
    text = signal.encode(value)
    what = f"value of signal {signal.name}"
    stored, reference = await client.patience.read(lambda: client.inputs.put(text, what=what))
    command = GiveSignal(name=signal.name, id=id, value=stored, value_ref=reference)
    try:
        await execute(client, ref, command, by=by)
    except SignalKnownError:
        return False
    except IllegalTransitionError:
        job = (await client.patience.read(lambda: load(client.log, ref))).job
        if job is None or not job.is_final:
            raise
        if id and any(each.id == id for each in job.signals):
            return False
        raise UnknownSignalError(job.id, job.state.value, signal.name) from None
    client.hints.tell_resume(ref)
    return True
