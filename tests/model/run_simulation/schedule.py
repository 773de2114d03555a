"""One schedule: who does something next is chance, and so is who dies; in the end nobody dies any more."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final
from unittest import mock

import msgspec
from tests.model.run_simulation.checks import check, unreached
from tests.model.run_simulation.holder import Holder
from tests.model.run_simulation.others import (
    CANCEL,
    MEND,
    PAUSE,
    SimReactor,
    archive,
    ask,
    fire,
    mend,
    resume,
    resume_child,
    wish,
    work,
)
from tests.model.run_simulation.program import SIGNALS, make_program
from tests.model.run_simulation.stage import RUN, Folds, Stage
from tests.model.simulation.loop import Process

from jobledger.ledger.model import chain
from jobledger.ledger.model.commands import Enqueue, GiveSignal, Requeue
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.steps import next_signal
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client

Main = Callable[[Client], Coroutine[Any, Any, None]]
_AT_ONCE_MAX: Final = 7
_ROUNDS_MAX: Final = 60
_AGES_S: Final = 10.0
_ACTIVE = (JobState.QUEUED, JobState.RUNNING)


class Outcome(msgspec.Struct):
    """How one schedule ended."""

    seed: int
    state: str
    events: int
    violations: list[str]
    trace: list[str]


class Schedule:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stage = Stage(seed)
        random = self.stage.random
        self.program = make_program(random)
        self.turns = random.choice((60, 150, 400))
        self.meddling = random.choice((0.0, 0.05, 0.15))
        self.favourite = random.choice((None, None, CANCEL, PAUSE, MEND))
        self.archives = random.random() < 0.15
        self.diverges = random.random() < 0.1
        self.holders: list[Process] = []
        self.workers: dict[JobRef, Process] = {}
        self.processes: list[Process] = []
        self.violations: list[str] = []

    def run(self) -> Outcome:
        """Play the schedule to its end, and say what is wrong with it."""
        with mock.patch.object(chain, "fold", Folds().fold):
            return self._run()

    def _run(self) -> Outcome:
        stage = self.stage
        process, client = stage.process("client")
        deaths, freezes = stage.death, stage.freeze
        stage.death = stage.freeze = 0.0
        order = Order(max_attempts=1_000_000)
        stage.start(process, ask(client, RUN, Enqueue(ref=RUN, task="run", order=order)))
        stage.drain()
        stage.death, stage.freeze = deaths, freezes
        for _ in range(self.turns):
            self._turn()
        self._settle()
        violations = [*stage.errors, *self.violations, *check(stage)]
        violations += [error for process in stage.world.processes for error in process.errors]
        stage.world.end()
        trace = [
            f"{each.stream_sequence:4d} {each.event.job:12s} {each.data.decode()}" for each in stage.stored
        ]
        return Outcome(self.seed, stage.run.state.value, len(stage.stored), violations, trace)

    # While anything may happen.

    def _turn(self) -> None:
        stage, random = self.stage, self.stage.random
        self.processes = [each for each in self.processes if each.alive and each in stage.world.runnable]
        if len(self.processes) < _AT_ONCE_MAX and (not stage.world.runnable or random.random() < 0.3):
            self._begin_something()
        stage.thaw()
        for _ in range(random.randint(1, 6)):
            if not stage.step():
                stage.offset_s += random.random()
                break

    def _begin_something(self) -> None:
        random = self.stage.random
        what = random.random()
        if what < self.meddling:
            self._start("person", lambda client: wish(self.stage, client, self.favourite))
        elif what < 0.35:
            self._hold()
        elif what < 0.6:
            self._work()
        elif what < 0.95:
            self._react()
        elif self.archives and what > 0.98:
            self._start("archive", lambda client: archive(self.stage, client))
        else:
            self._fire()

    def _start(self, name: str, main: Main) -> Process:
        process, client = self.stage.process(name)
        self.stage.start(process, main(client))
        self.processes.append(process)
        return process

    def _hold(self) -> None:
        job, random = self.stage.run, self.stage.random
        self.holders = [each for each in self.holders if each in self.stage.world.runnable]
        lapsed = not self.holders or random.random() < 0.1  # a lease may lapse while its process lives
        if job.state is JobState.QUEUED or (job.state is JobState.RUNNING and lapsed):
            diverges = self.diverges and random.random() < 0.3
            self.diverges = self.diverges and not diverges
            self.holders.append(self._start("holder", lambda client: self._holder(client, diverges=diverges)))

    async def _holder(self, client: Client, *, diverges: bool) -> None:
        await Holder(self.stage, self.program, client, diverges=diverges).run()

    def _work(self) -> None:
        open_ones = [ref for ref, job in self.stage.children.items() if job.state in _ACTIVE]
        if open_ones:
            ref = self.stage.random.choice(open_ones)
            busy = self.workers.get(ref)
            if busy is None or busy not in self.stage.world.runnable or self.stage.random.random() < 0.1:
                self.workers[ref] = self._start(
                    "worker", lambda client: work(self.stage, self.program, client, ref)
                )

    def _react(self) -> None:
        """Hand some events to a reactor: those that nobody has, those whose process died, and seldom others again."""
        stage, random = self.stage, self.stage.random
        free = [
            each
            for each in stage.waiting.values()
            if not any(process.alive for process in each.in_hands_of) or random.random() < 0.05
        ]
        if not free:
            return
        process, client = stage.process("reactor")
        reactor = SimReactor(stage, client)
        for handed in random.sample(free, random.randint(1, min(4, len(free)))):
            stage.start(process, reactor.deal_with(process, handed))
        self.processes.append(process)

    def _fire(self) -> None:
        due = [ref for ref, job in self.stage.jobs.items() if job.state is JobState.WAITING and job.due_at]
        if due:
            self._start("timer", lambda client: fire(self.stage, client, self.stage.random.choice(due)))

    # The end.

    def _settle(self) -> None:
        """Let nobody die any more, and everything be done that somebody will do, until nothing is left."""
        stage = self.stage
        stage.death = stage.stale = stage.freeze = 0.0
        stage.thaw(all_of_them=True)
        stage.drain()
        self.diverges = False
        for each in stage.world.processes:
            each.kill()
        for _ in range(_ROUNDS_MAX):
            before = len(stage.stored), stage.acks
            self._round()
            if (len(stage.stored), stage.acks) == before and not self._end_wait():
                return
        self.violations.append(f"not at rest after {_ROUNDS_MAX} rounds, the run is {stage.run.state.value}")

    def _do(self, name: str, main: Main) -> None:
        self._start(name, main)
        self.stage.drain()

    def _deliver(self) -> None:
        for handed in list(self.stage.waiting.values()):
            handed.in_hands_of.clear()
            process, client = self.stage.process("reactor")
            self.stage.start(process, SimReactor(self.stage, client).deal_with(process, handed))
            self.stage.drain()

    def _round(self) -> None:
        stage = self.stage
        self._deliver()
        stage.offset_s += _AGES_S
        for ref, job in list(stage.jobs.items()):
            if job.state is JobState.WAITING and job.due_at is not None:
                self._do("timer", _about(ref, lambda client, ref: fire(stage, client, ref)))
        if stage.run.state in _ACTIVE:
            self._do("holder", lambda client: self._holder(client, diverges=False))
        self._deliver()
        for ref, job in list(stage.children.items()):
            if job.state is JobState.RUNNING or (job.state is JobState.QUEUED and self._goes_on(ref)):
                self._do("worker", _about(ref, lambda client, ref: work(stage, self.program, client, ref)))

    def _goes_on(self, ref: JobRef) -> bool:
        """Whether a child that waits is to be run: one that is left behind by its run's end would hide that."""
        if not self.stage.run.is_final or ref in self.stage.requeued:
            return True
        return self._is_abandoned(self.stage.jobs[ref])

    def _is_abandoned(self, child: Job) -> bool:
        assert child.member is not None, "a child"
        order = self.stage.run.steps[child.member.step].order
        return order is not None and order.on_parent_end == "abandon"

    def _end_wait(self) -> bool:
        """Do what only a person can do; return whether there was anything."""
        stage, run = self.stage, self.stage.run
        if stage.waiting:
            self.violations.append(f"{len(stage.waiting)} events come to the reactor for ever")
            return False
        if run.state is JobState.PAUSED:
            self.violations += unreached(stage)
            self._do("person", lambda client: resume(client, RUN))
            return True
        if run.state is JobState.DEAD_LETTERED and run.dead_reason == "diverged":
            self._do("person", lambda client: ask(client, RUN, Requeue()))
            return True
        before = len(stage.stored)
        for ref, job in list(stage.children.items()):
            if job.state is JobState.PAUSED:
                self._do("person", _about(ref, lambda client, ref: resume_child(stage, client, ref)))
        if not run.is_final:
            for dead in stage.dead:
                self._do("person", _about(dead, lambda client, ref: mend(stage, client, ref)))
        if len(stage.stored) > before:
            return True
        return self._give_signals(run)

    def _give_signals(self, run: Job) -> bool:
        for name in SIGNALS:
            waits = any(
                step is not None and step.kind == "wait" and step.target == name
                for step in map(run.steps.get, run.awaited)
            )
            if waits and next_signal(run.signals, name) is None:
                return self._signal(GiveSignal(name=name))
        return False

    def _signal(self, signal: GiveSignal) -> bool:
        self._do("person", lambda client: ask(client, RUN, signal))
        return True


def _about(ref: JobRef, main: Callable[[Client, JobRef], Coroutine[Any, Any, None]]) -> Main:
    return lambda client: main(client, ref)
