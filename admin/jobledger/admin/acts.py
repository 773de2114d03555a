"""What a person does to one job, found by its id or a prefix: run it here, ask what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from jobledger.admin.find import find_job
from jobledger.admin.held import held_facts
from jobledger.admin.past import AsOf, events_until
from jobledger.admin.rows import Rows
from jobledger.admin.runs import open_children_of
from jobledger.audit.why import Facts, Why, explain, find_facts, in_its_queue
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Carried
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.opened_jobs import opened_history, opened_job
from jobledger.ledger.tasks import TaskRegistry


class AttemptRun(NamedTuple):
    """A job after one attempt that was run here."""

    job: Job
    history: list[StoredEvent]
    new: list[StoredEvent]  #: its last events, stored since the attempt was asked for


class Explanation(NamedTuple):
    """What a job waits for, and by which events that is known."""

    job: Job
    why: Why
    facts: Facts  #: the surroundings of the job, with the time of the answer
    #: The events that prove it; if an archive holds them, the event that carried the job over.
    proof: list[StoredEvent]


async def run(
    rows: Rows, tasks: TaskRegistry, job_id: str, queue: str | None = None, *, by: str
) -> AttemptRun:
    """Run one attempt of a waiting job in this process, past its queue, through the same claim as in any worker.

    Raises: as `find_job` and `workers.single.run_one`.
    """
    # Imported here: no other act needs the code that runs attempts.
    from jobledger.workers.single import run_one  # noqa: PLC0415

    handle = await find_job(rows, job_id, queue)
    seen = (await handle.history())[-1].stream_sequence
    job = await run_one(rows.ledger, tasks, handle.ref, by=by)
    history = await handle.history()
    return AttemptRun(job, history, [stored for stored in history if stored.stream_sequence > seen])


def _all(job: Job, facts: Facts) -> tuple[Job, Facts]:
    return job, facts


async def why(
    rows: Rows,
    job_id: str,
    queue: str | None = None,
    *,
    past: AsOf | None = None,
    narrowed: Callable[[Job, Facts], tuple[Job, Facts]] = _all,
    opens: bool = True,
) -> Explanation:
    """Say what a job waits or waited for at a moment, since when, and which event proves it.

    `narrowed`: removes the parts of a job and its facts that the asker may not see. `opens`: the asker may see
    payloads, and therefore texts of jobs that have an owner.

    Raises: as `find_job`; UnreachableError; for a past moment as `AsOf.moment` and `events_until`.
    """
    handle = await find_job(rows, job_id, queue)
    history = await handle.history()
    if past is None:
        job = await handle.snapshot()
        facts = await find_facts(rows.ledger, job)
        if job.state is JobState.HELD:
            facts = msgspec.structs.replace(facts, held=await held_facts(rows.ledger, job))
        if job.awaited:
            facts = msgspec.structs.replace(facts, children=await open_children_of(rows, job))
    else:
        then = await past.moment(rows.ledger.log, rows.ledger.clock)
        history = events_until(history, then)
        was = fold(history).job
        assert was is not None, "a history is not empty"
        job, facts = was, Facts(now=then.at or history[-1].stored_at, is_past=True)
    if opens:
        job = await opened_job(rows.ledger.keys, job)
        history = await opened_history(rows.ledger.keys, history)
    job, facts = narrowed(job, facts)
    found = explain(job, facts)
    if queue is not None:  # other queues may have this id, too
        found = in_its_queue(found, job)
    told = {found.event_sequence, *(wait.sequence for wait in found.waits)}
    says_so = [stored for stored in history if stored.stream_sequence in told]
    carried = [stored for stored in history if isinstance(stored.event, Carried)]
    return Explanation(job, found, facts, says_so or carried[-1:])
