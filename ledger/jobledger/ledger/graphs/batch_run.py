"""`run_batch`: the built-in workflow of a batch. It waits for the end of jobs that a client made, and holds no slot."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from jobledger.ledger.model.commands import Join
from jobledger.ledger.model.runs.orders import (
    BATCH_CLOSED,
    BATCH_STEP,
    BUILT_IN_ATTEMPTS,
    BUILT_IN_QUEUE,
    RUN_BATCH,
    ChildNode,
    ChildOrder,
)
from jobledger.ledger.runs.passage import Passage
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.signals import Signal
from jobledger.ledger.runs.workflow import workflow

END_STEP: Final = "end"  #: what follows the batch
_closed = Signal(BATCH_CLOSED, int)


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a batch: the input of `run_batch`."""

    task: str  #: what its jobs run
    queue: str  #: where they wait
    end: ChildNode | None = None  #: what is enqueued when all have ended
    told: tuple[str, ...] = ()  #: which of `batch` and `counts` the task of `end` takes as arguments


@workflow(name=RUN_BATCH, queue=BUILT_IN_QUEUE, max_attempts=BUILT_IN_ATTEMPTS)
async def run_batch(run: Run, batch: BatchSpec) -> dict[str, int]:
    """Wait until all jobs of the batch were added and have ended; return how many ended in which state."""
    passage = run._passage  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it does what a method of a run does
    jobs = _Jobs(passage, batch)
    with passage.enter(BATCH_STEP) as branch:
        await jobs.begin(branch)
    count = await run.wait(_closed)
    counts = await jobs.ended(count)
    if batch.end is not None:
        with passage.enter(END_STEP) as branch:
            await jobs.tell(branch, counts)
    return counts


class _Jobs:
    """The jobs of one batch, as the children of its only group."""

    def __init__(self, passage: Passage, batch: BatchSpec) -> None:
        self._passage = passage
        self._batch = batch

    async def begin(self, branch: Branch) -> None:
        """Open the group: from now on ends of its jobs are counted, however many there will be."""
        asked = await self._passage.ask(branch.key(BATCH_STEP), "map", self._batch.task)
        if asked.known is None:
            order = ChildOrder(
                task=self._batch.task, queue=self._batch.queue, count=0, is_open=True, on_failure="collect"
            )
            await self._passage.start(asked, order=order, items=msgspec.Raw(b"[]"))

    async def ended(self, count: int) -> dict[str, int]:
        """Close the group with its count, wait for the last end, and record how many ended in which state."""
        passage, journal = self._passage, self._passage.journal
        with passage.enter(BATCH_STEP):
            asked = await passage.ask(BATCH_STEP, "map", self._batch.task)
            step = journal.job.steps[BATCH_STEP]
            if not step.has_ended:
                if step.count is None:
                    await journal.append(Join(step=BATCH_STEP, count=count))
                step = await passage.waits.until_over(BATCH_STEP)
                counts = Counter({"completed": (step.ended & ~step.failed).bit_count()})
                if step.failed:
                    counts.update(end.state for end in await journal.ends(BATCH_STEP, items=step.failed))
                await passage.complete(asked, msgspec.json.encode(counts))
            text = await passage.result_of(journal.job.steps[BATCH_STEP])
            return msgspec.json.decode(text, type=dict[str, int])

    async def tell(self, branch: Branch, counts: dict[str, int]) -> None:
        """Enqueue what is to follow, once: its id follows from the batch's name."""
        passage, node = self._passage, self._batch.end
        assert node is not None, "it was asked for"
        asked = await passage.ask(branch.key(END_STEP), "call", node.task)
        if asked.known is None:
            told = {"batch": passage.journal.job.id, "counts": counts}
            text = msgspec.json.encode({name: told[name] for name in self._batch.told})
            items, reference = await passage.journal.put_items([text], what=f"input of task {node.task}")
            order = ChildOrder(
                task=node.task, queue=node.queue, count=1, on_parent_end="abandon", nodes=(node,)
            )
            await passage.start(asked, order=order, items=items, items_ref=reference)
        await passage.journal.open(asked.key, again=asked.known is not None)
