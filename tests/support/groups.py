"""Groups of children in tests: runs whose steps are appended by hand, and what the ledger alone says of the children."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from jobledger.ledger import JobHandle, Ledger
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.chain import transact
from jobledger.ledger.model.commands import Claim, Enqueue, Pause, StartStep
from jobledger.ledger.model.events import Held, JobEvent, JoinFact, Member, Order, Paused, Queued
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.runs.events import Joined
from jobledger.ledger.model.runs.orders import ChildOrder, bits_of, items_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.children.reach import ends_children

KEY = "pages"
#: The queue of the runs of tests that no worker takes.
RUNS = "runs"


async def begin(
    ledger: Ledger, order: ChildOrder, inputs: list[dict[str, Any]] | None = None, *, parks: bool = True
) -> JobHandle[Any]:
    """Begin a run whose step asks for children, as its worker would, and let it wait for them; makes none of them."""
    ref = JobRef(queue=RUNS, job_id=new_identity().rpartition("-")[2])
    await ledger.execute(
        ref, Enqueue(ref=ref, task="run", order=Order(input=msgspec.Raw(b"{}"), max_attempts=9))
    )
    view = await transact(ledger.log, ref, Claim(worker="tester", lease_s=600), ledger.stamp)
    assert view.job is not None
    epoch = view.job.claim_epoch
    given = inputs if inputs is not None else [{"n": n} for n in range(order.count)]
    items, items_ref = await ledger.inputs.put(msgspec.json.encode(given), what="items", key="")
    start = StartStep(
        epoch=epoch,
        step=KEY,
        kind="graph" if order.after else "map",
        target=order.task,
        order=order,
        items=items,
        items_ref=items_ref,
    )
    view = await transact(ledger.log, ref, start, ledger.stamp, known=view)
    if parks:
        await transact(ledger.log, ref, Pause(epoch=epoch, steps=(KEY,)), ledger.stamp, known=view)
    return ledger.handle_of(ref)


class Groups:
    """What a whole ledger says of groups of children; `wrong` has a sentence for each broken promise."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.jobs: dict[str, Job] = {}  #: by id
        self.made: Counter[str] = Counter()  #: first events of children, by run
        self.counted: Counter[tuple[str, str, int]] = Counter()  #: by run, step and item
        self.peaks: Counter[tuple[str, str]] = (
            Counter()
        )  #: children of a step that were alive at once, at the most
        self.woken: Counter[str] = Counter()  #: dispatches that ends of children caused, by run
        self.waits: Counter[str] = Counter()  #: pauses, by run
        self.resumed: Counter[str] = Counter()  #: dispatches that ended one, by run
        self._alive: dict[tuple[str, str], set[int]] = {}

    @classmethod
    async def of(cls, log: Log) -> Groups:
        """Read a ledger from its beginning to its end."""
        found = cls()
        async for batch in log.read():
            for stored in batch:
                found._take(stored.event, stored.stream_sequence)
        for job in found.jobs.values():
            if ends_children(job):
                for key, alive in found._alive_of(job):
                    found.wrong.append(f"{sorted(alive)} of {key} live on, and run {job.id} is {job.state}")
        return found

    def _alive_of(self, run: Job) -> list[tuple[str, set[int]]]:
        return [
            (key, alive)
            for key, step in run.steps.items()
            if step.order is not None
            and step.order.on_parent_end == "cancel"
            and (alive := self._alive.get((run.id, key)))
        ]

    def _take(self, event: JobEvent, sequence: int) -> None:
        before = self.jobs.get(event.job)
        job = self.jobs[event.job] = evolve(before, event, sequence)
        member = job.order.member
        if before is None and member is not None:
            self._is_made(job, member)
        if member is not None and job.is_final:
            self._alive[member.job, member.step].discard(member.item)
        self.waits[job.id] += isinstance(event, Paused)
        was_paused = before is not None and before.state is JobState.WAITING
        self.resumed[job.id] += was_paused and isinstance(event, Queued | Held)
        if isinstance(event, Joined):
            self._is_counted(job, event)
        elif isinstance(event, Queued | Held) and event.joined is not None:
            self.woken[job.id] += 1
            self._is_counted(job, event.joined)

    def _is_made(self, child: Job, member: Member) -> None:
        key = (member.job, member.step)
        self.made[member.job] += 1
        alive = self._alive.setdefault(key, set())
        alive.add(member.item)
        self.peaks[key] = max(self.peaks[key], len(alive))
        step = self.jobs[member.job].steps.get(member.step)
        if step is None or step.order is None or step.order.is_open:
            return  # of a batch: its client made it
        if not step.opened >> member.item & 1:
            self.wrong.append(f"{child.id} was made before it was opened")
        if step.order.limit and len(alive) > step.order.limit:
            self.wrong.append(f"{len(alive)} children of {key} were open at once")

    def _is_counted(self, run: Job, fact: Joined | JoinFact) -> None:
        step = run.steps[fact.step]
        failed = bits_of(fact.failed)
        for item in items_of(bits_of(fact.completed) | failed):
            self.counted[run.id, fact.step, item] += 1
            child = self.jobs.get(child_ref(JobRef(queue=run.queue, job_id=run.id), step, item).job_id)
            if self.counted[run.id, fact.step, item] > 1:
                self.wrong.append(f"the end of item {item} of {run.id} was counted twice")
            elif child is None or not child.is_final:
                self.wrong.append(f"item {item} of {run.id} was counted before it ended")
            elif (child.state is JobState.COMPLETED) == bool(failed >> item & 1):
                self.wrong.append(
                    f"item {item} of {run.id} is {child.state}, and was counted as the opposite"
                )
