"""One attempt of the simulated run: claims it, goes on from its steps, and parks, ends or dies."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec
from tests.model.run_simulation.program import Program, Spec
from tests.model.run_simulation.stage import RUN, Stage

from jobledger.ledger.model.chain import JobView, catch_up, commit, load, transact
from jobledger.ledger.model.commands import (
    Claim,
    Command,
    Complete,
    CompleteStep,
    ConfirmCancel,
    Fail,
    FailStep,
    Join,
    Pause,
    StartStep,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import IllegalTransitionError, StaleClaimError, WrongSequenceError
from jobledger.ledger.model.events import DeadReason, ErrorInfo
from jobledger.ledger.model.job import OPERATOR, Job, JobState
from jobledger.ledger.model.runs.errors import StepOverError
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.runs.steps import Step, admissible, is_over, next_signal
from jobledger.ledger.protocols import Client
from jobledger.workers.reactors.children.creation import ChildOpener

ERROR: Final = ErrorInfo(kind="exception", type="BoomError", message="boom")
CHILD_FAILED: Final = ErrorInfo(kind="child_failed", type="ChildFailedError", message="a child failed")
_LOOKS_MAX: Final = 60
_UNDO: Final = "undo/refund"


class EndedError(Exception):
    """The attempt is over."""


class Holder:
    """Whoever has the claim of the run."""

    def __init__(self, stage: Stage, program: Program, client: Client, *, diverges: bool) -> None:
        self._stage = stage
        self._program = program
        self._client = client
        self._opening = ChildOpener(client)
        self._diverges = diverges
        self._view = JobView()
        self._epoch = 0
        self._opened: set[str] = set()  # groups whose children this attempt saw to

    async def run(self) -> None:
        """Make one attempt, as far as it comes."""
        try:
            await self._claim()
            await self._play()
        except (EndedError, StaleClaimError, IllegalTransitionError, WrongSequenceError):
            return  # somebody else has the run, or will

    async def _claim(self) -> None:
        log, stamp = self._client.log, self._client.stamp()
        view = await load(log, RUN)
        job = view.job
        if job is None or job.state not in (JobState.QUEUED, JobState.RUNNING):
            raise EndedError
        command: Command = Claim(worker=stamp.by, lease_s=1.0)
        if job.state is JobState.RUNNING:
            command = TakeOver(worker=stamp.by, lease_s=1.0, lost_epoch=job.claim_epoch)
        self._view = await commit(log, view, decide(job, command, stamp))
        if self._job.state is not JobState.RUNNING:
            raise EndedError
        self._epoch = self._job.claim_epoch

    @property
    def _job(self) -> Job:
        assert self._view.job is not None, "it was claimed"
        return self._view.job

    async def _put(self, command: Command) -> None:
        self._view = await transact(self._client.log, RUN, command, self._client.stamp, known=self._view)

    async def _play(self) -> None:
        if self._diverges:
            await self._fail("diverged", ERROR)
        for specs in self._program.stages:
            for _ in range(_LOOKS_MAX):
                if await self._pass(specs):
                    break
            else:
                raise AssertionError("the run looks for ever and never waits")
        await self._put(Complete(epoch=self._epoch))

    async def _pass(self, specs: tuple[Spec, ...]) -> bool:
        """Bring a stage as far as it comes; return whether it is over. Where it is not, wait for it."""
        left = [spec for spec in specs if not await self._advance(spec)]
        if not left:
            return True
        await self._obey()
        steps = [self._job.steps[spec.key] for spec in left]
        moments: list[datetime] = [step.until for step in steps if step.until is not None]
        keys = tuple(spec.key for spec in left)
        until = min(moments, default=None)
        try:
            await self._put(Pause(epoch=self._epoch, steps=keys, until=until, undos=self._program.undos))
        except StepOverError:
            self._view = await catch_up(self._client.log, RUN, self._view)
            return False
        raise EndedError

    async def _obey(self) -> None:
        """End where somebody asked for it, and wait where somebody asked for that."""
        if self._job.cancel_requested:
            await self._undo()
            await self._put(ConfirmCancel(epoch=self._epoch))
            raise EndedError
        if self._job.pause_requested:
            pause = Pause(epoch=self._epoch, event=OPERATOR, undos=self._program.undos)
            try:
                await self._put(pause)
            except StepOverError:
                self._view = await catch_up(self._client.log, RUN, self._view)
                await self._obey()
            raise EndedError

    async def _undo(self) -> None:
        if self._program.undos and _UNDO not in self._job.steps:
            await self._put(CompleteStep(epoch=self._epoch, step=_UNDO, kind="undo", target="refund"))

    async def _fail(self, reason: DeadReason, error: ErrorInfo) -> None:
        if reason != "diverged":
            await self._undo()
        await self._put(Fail(epoch=self._epoch, error=error, give_up=reason))
        raise EndedError

    async def _advance(self, spec: Spec) -> bool:
        """Do what there is to do for a step; return whether it is over."""
        step = self._job.steps.get(spec.key)
        if step is not None and step.has_ended:
            if step.state == "failed" and spec.order is not None and not self._program.catches:
                await self._fail("rejected", CHILD_FAILED)
            return True
        await self._obey()
        if step is None:
            await self._begin(spec)
            return spec.kind == "step"
        if spec.order is not None:
            return await self._advance_group(spec, step)
        if spec.kind == "wait":
            return await self._take(spec, step)
        if not is_over(step, (), self._stage.now()):
            return False
        await self._complete(spec)
        return True

    async def _begin(self, spec: Spec) -> None:
        if spec.kind == "step":
            await self._complete(spec)
            return
        until = None if spec.wait_s is None else self._stage.now() + timedelta(seconds=spec.wait_s)
        items = msgspec.Raw(b"[]")
        if spec.order is not None:
            items = msgspec.Raw(msgspec.json.encode([{"item": item} for item in range(spec.order.count)]))
        start = StartStep(
            epoch=self._epoch,
            step=spec.key,
            kind=spec.kind,
            target=spec.target,
            until=until,
            order=spec.order,
            items=items,
        )
        await self._put(start)
        if spec.order is not None:
            await self._open(spec.key, again=False)

    async def _complete(self, spec: Spec, *, signal: int = 0) -> None:
        await self._put(
            CompleteStep(epoch=self._epoch, step=spec.key, kind=spec.kind, target=spec.target, signal=signal)
        )

    async def _take(self, spec: Spec, step: Step) -> bool:
        found = next_signal(self._job.signals, spec.target)
        if found is not None:
            await self._complete(spec, signal=found.sequence)
            return True
        if not is_over(step, (), self._stage.now()):
            return False
        await self._put(
            FailStep(epoch=self._epoch, step=spec.key, kind="wait", target=spec.target, error=ERROR)
        )
        return True

    async def _advance_group(self, spec: Spec, step: Step) -> bool:
        if step.is_joined:
            if step.failed:
                await self._put(
                    FailStep(
                        epoch=self._epoch,
                        step=spec.key,
                        kind=spec.kind,
                        target=spec.target,
                        error=CHILD_FAILED,
                    )
                )
                return await self._advance(spec)
            await self._complete(spec)
            return True
        if admissible(step):
            await self._put(Join(step=spec.key))
            self._opened.discard(spec.key)
        if spec.key not in self._opened:  # whoever held the run before may have died before it did
            await self._open(spec.key, again=True)
        return False

    async def _open(self, key: str, *, again: bool) -> None:
        self._opened.add(key)
        items = self._job.steps[key].open
        if items_of(items):
            self._view = await self._opening.open(RUN, self._view, key, items, again=again)
