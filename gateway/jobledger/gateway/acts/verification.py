"""`verify_ledger`: the built-in task that checks the whole ledger, as `jobledger audit verify --record` does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from jobledger.audit.verify import Expectation, Report, Witness, verify
from jobledger.audit.verify.seals import seals_as_witness
from jobledger.audit.watch import record_verify
from jobledger.gateway.acts.bulk_input import QUEUE, asker_of
from jobledger.ledger import Context, JobHandle, Ledger, Task, Unique, task
from jobledger.ledger.access.current_authority import acting_for
from jobledger.projections import ProjectionError
from jobledger.projections.witness import PositionWitness

TASK: Final = "verify_ledger"
#: How long one check may take; a ledger that needs longer is checked at the command line.
_TIMEOUT_S: Final = 2 * 3600.0


def verify_task(projection: Path | None = None) -> Task[..., Any]:
    """Return the task; `projection`: the file whose position the ledger must reach, where it can be read."""

    @task(name=TASK, queue=QUEUE, max_attempts=2, timeout_s=_TIMEOUT_S, unique=Unique(args=()))
    async def verify_ledger(context: Context, by: str = "") -> Report:
        """Read every event, within 64 MiB of memory, and record the verdict in the name of its asker.

        The job's first event names the asker; older gateways sent `by`, which is ignored.
        """
        del by
        ledger = context.ledger
        report = await verify(
            ledger.log,
            expected=Expectation(now=ledger.clock.now()),
            witnesses=[each async for each in _witnesses(ledger, projection)],
            on_progress=context.progress,
        )
        await record_verify(ledger.log, report, ledger.stamp(await asker_of(ledger, context.job_id)))
        return report

    return verify_ledger


async def begin_check(ledger: Ledger, by: str) -> JobHandle[Any]:
    """Enqueue a check, or return the one that waits or runs. Raises: as `Ledger.enqueue`."""
    with acting_for(None):  # the endpoint or form has checked the permission
        return await ledger.enqueue(verify_task().options(by=by))


async def _witnesses(ledger: Ledger, projection: Path | None) -> AsyncGenerator[Witness, None]:
    """Yield the projection's position and the ledger's seals, read before its events: they must agree with it."""
    if projection is not None:
        try:
            position = PositionWitness.beside(projection, ledger.log)
        except (ProjectionError, OSError):  # a file that cannot be read will be rebuilt, and proves nothing
            position = None
        if position is not None:
            yield position
    seals = await seals_as_witness(ledger.log)
    if seals is not None:
        yield seals
