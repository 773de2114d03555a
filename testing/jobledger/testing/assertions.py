"""`assert_enqueued`: what a test says of the jobs that the code under test made."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.events import JobEvent, Order, order_at_first
from jobledger.ledger.model.foreign_types import to_builtin
from jobledger.ledger.model.log import only_jobs
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.tasks import Task

_SHOWN_MAX: Final = 20


async def assert_enqueued(
    ledger: Ledger, task: Task[..., Any] | str, *, count: int = 1, **arguments: Any
) -> list[JobHandle[Any]]:
    """Assert that the ledger has `count` jobs of a task whose inputs hold these arguments; return their handles.

    Arguments that are not given may be anything. `count=0` asserts that there is none. Works with a ledger in memory
    and with one on a server; every job that was ever enqueued counts, whatever became of it.

    Raises: AssertionError, whose text lists the jobs that there are; UnreachableError.
    """
    name = task if isinstance(task, str) else task.name
    wanted: dict[str, Any] = msgspec.to_builtins(arguments, enc_hook=to_builtin)
    found: list[JobHandle[Any]] = []
    others: list[str] = []
    async for batch in only_jobs(ledger.log.read_messages()):
        for stored in batch:
            event = stored.event
            if event.prev:
                continue
            given = await _input(ledger, event)
            if event.task == name and all(key in given and given[key] == wanted[key] for key in wanted):
                reader = None if isinstance(task, str) else task.signature
                ref = JobRef(queue=event.queue, job_id=event.job)
                found.append(ledger.handle_of(ref, sequence=stored.stream_sequence, reader=reader))
            else:
                others.append(f"{event.task} {msgspec.json.encode(given).decode()}")
    if len(found) != count:
        raise AssertionError(_sentence(name, wanted, count, len(found), others))
    return found


async def _input(ledger: Ledger, event: JobEvent) -> dict[str, Any]:
    order: Order = order_at_first(event)
    given: dict[str, Any] = msgspec.json.decode(
        await ledger.inputs.get(order.input, order.input_ref, key=order.key)
    )
    return given


def _sentence(name: str, wanted: dict[str, Any], count: int, found: int, others: list[str]) -> str:
    with_words = f" with {msgspec.json.encode(wanted).decode()}" if wanted else ""
    shown = "".join(f"\n  {each}" for each in others[:_SHOWN_MAX])
    more = f"\n  and {len(others) - _SHOWN_MAX} more" if len(others) > _SHOWN_MAX else ""
    rest = f"; the other jobs:{shown}{more}" if others else "; there are no other jobs"
    return f"{found} jobs of task {name}{with_words} were enqueued, not {count}{rest}"
