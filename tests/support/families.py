"""Ledgers of runs and their children in the making, event by event, for tests of the checker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from tests.support.stories import BOOM, Story

from jobledger.ledger.model.commands import (
    CancelJob,
    CompleteStep,
    Dispatch,
    Fail,
    FailStep,
    GiveSignal,
    Join,
    Pause,
    RequestPause,
    ResumeJob,
    StartStep,
)
from jobledger.ledger.model.events import ChildOrder, CopiedEnd, ErrorInfo, Member, RerunOf
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import BATCH_STEP, RUN_BATCH, StepKind, child_id

_LOST = ErrorInfo(kind="timeout", type="TimeoutError", message="slow")


class Families(Story):
    """A ledger in which a test lets runs do steps, ask for children, wait and be woken."""

    def job(self, job: str) -> Job:
        found = self.chains[self.ref(job)].job
        assert found is not None
        return found

    def begin(self, run: str = "r", **order: Any) -> None:
        self.enqueue(run, **order)
        self.claim(run)

    def ask(self, run: str = "r", key: str = "pages", *, count: int = 3, **order: Any) -> int:
        """Let a run ask for children."""
        asked = ChildOrder(task="send", queue="email", count=count, **order)
        kind: StepKind = "graph" if asked.after else "map"
        return self.do(run, StartStep(**self._of(run, key, kind, "send"), order=asked))

    def _of(self, run: str, key: str, kind: StepKind, target: str = "") -> dict[str, Any]:
        return {"epoch": self.epoch(run), "step": key, "kind": kind, "target": target or key}

    def start(self, run: str, key: str, kind: StepKind = "step", **fields: Any) -> int:
        target = fields.pop("target", "")
        return self.do(run, StartStep(**self._of(run, key, kind, target), **fields))

    def end(self, run: str, key: str, kind: StepKind = "step", **fields: Any) -> int:
        target = fields.pop("target", "")
        return self.do(run, CompleteStep(**self._of(run, key, kind, target), **fields))

    def fail(self, run: str, key: str, **fields: Any) -> int:
        return self.do(run, FailStep(**self._of(run, key, "step"), error=_LOST, **fields))

    def park(self, run: str, *keys: str, **fields: Any) -> int:
        return self.do(run, Pause(epoch=self.epoch(run), steps=keys, **fields))

    def child(self, item: int, run: str = "r", key: str = "pages", **changes: Any) -> str:
        """Make a child as whoever opened it does; return its id."""
        step = self.job(run).steps.get(key)
        own_id: str = changes.pop("id", child_id(run, 1 if step is None else step.number, item))
        member = Member(queue="email", job=run, step=key, item=item)
        self.enqueue(own_id, member=member, max_attempts=1, **changes)
        return own_id

    def join(self, run: str = "r", key: str = "pages", *, done: Any = (), bad: Any = ()) -> int:
        completed = tuple((item, item) for item in done)
        return self.do(run, Join(step=key, completed=completed, failed=tuple((item, item) for item in bad)))

    def break_down(self, job: str) -> None:
        self.claim(job)
        self.do(job, Fail(epoch=self.epoch(job), error=BOOM))

    def signal(self, run: str, name: str, **fields: Any) -> int:
        return self.do(run, GiveSignal(name=name, **fields))


def _inline(story: Families) -> None:
    """Steps with tries, one that failed for good and is tried again, and a takeover in between."""
    story.begin("inline")
    story.end("inline", "one")
    story.fail("inline", "two", retry_at=story.now + timedelta(seconds=1))
    story.fail("inline", "two", tries=2)
    story.do("inline", Fail(epoch=story.epoch("inline"), error=BOOM))
    story.claim("inline")
    story.end("inline", "two", tries=1)
    story.complete("inline")


def _waits(story: Families) -> None:
    """A sleep, a signal that came early, one that is waited for, and one that never came."""
    story.begin("waits")
    until = story.now + timedelta(hours=1)
    story.start("waits", "nap", "sleep", until=until)
    story.park("waits", "nap", until=until)
    early = story.signal("waits", "go", id="click", value=msgspec.Raw(b'"yes"'))
    story.now = until
    story.do("waits", Dispatch(cause="due"))
    story.claim("waits")
    story.end("waits", "nap", "sleep")
    story.start("waits", "first", "wait", target="go")
    story.end("waits", "first", "wait", target="go", signal=early)
    story.start("waits", "second", "wait", target="go")
    story.park("waits", "second")
    told = story.signal("waits", "go")
    story.claim("waits")
    story.end("waits", "second", "wait", target="go", signal=told)
    story.complete("waits")


def _map(story: Families) -> None:
    """Five children, two at a time, one of which fails and is requeued; the run parks until the last has ended."""
    story.begin("map")
    story.ask("map", count=5, limit=2, on_failure="collect")
    open_ones = [story.child(item, "map") for item in (0, 1)]
    story.park("map", "pages")
    story.run(open_ones[0])
    story.join("map", done=[0])
    story.break_down(open_ones[1])
    story.child(2, "map")
    story.join("map", bad=[1])
    story.child(3, "map")
    for item in (3, 2):
        story.run(f"map-1-{item}")
    story.join("map", done=[2, 3])
    story.run(story.child(4, "map"))
    story.join("map", done=[4])
    story.claim("map")
    story.end("map", "pages", "map", target="send")
    story.complete("map")


def _stopped(story: Families) -> None:
    """The second of four fails: no other is opened, and the run becomes a dead letter."""
    story.begin("stopped", max_attempts=1)
    story.ask("stopped", count=4, limit=2)
    for item in (0, 1):
        story.child(item, "stopped")
    story.break_down("stopped-1-1")
    story.join("stopped", bad=[1])
    story.run("stopped-1-0")
    story.join("stopped", done=[0])
    story.do("stopped", Fail(epoch=story.epoch("stopped"), error=BOOM))


def _graph(story: Families) -> None:
    story.begin("graph")
    story.ask("graph", "all", count=4, after=((), (0,), (0,), (1, 2)))
    for some in ([0], [1, 2], [3]):
        for item in some:
            story.run(story.child(item, "graph", "all"))
        story.join("graph", "all", done=some)
    story.end("graph", "all", "graph", target="send")
    story.complete("graph")


def _cancelled(story: Families) -> None:
    """A run is cancelled while one child waits and another is made a moment later; both are cancelled."""
    story.begin("gone")
    story.ask("gone")
    for item in (0, 1):
        story.child(item, "gone")
    story.park("gone", "pages")
    story.do("gone", CancelJob())
    story.child(2, "gone")
    for item in range(3):
        story.do(f"gone-1-{item}", CancelJob(reason="its run gone was cancelled"))


def _paused(story: Families) -> None:
    """A person pauses a parked run, its child ends meanwhile, and the person lets it go on; twice, once too early."""
    story.begin("held-up")
    story.ask("held-up", count=2)
    children = [story.child(item, "held-up") for item in (0, 1)]
    story.park("held-up", "pages")
    story.do("held-up", RequestPause(reason="lunch"))
    story.do("held-up", ResumeJob())
    story.do("held-up", RequestPause())
    for number, child in enumerate(children):
        story.run(child)
        story.join("held-up", done=[number])
    story.do("held-up", ResumeJob())
    story.claim("held-up")
    story.end("held-up", "pages", "map", target="send")
    story.complete("held-up")


def _by_hand(story: Families) -> None:
    """A person lets a run go on that waits for a signal."""
    story.begin("asked")
    story.start("asked", "ok", "wait", target="ok", until=story.now + timedelta(days=1))
    story.park("asked", "ok", until=story.now + timedelta(days=1))
    story.do("asked", Dispatch(cause="resumed", reason="retried by hand"))
    story.claim("asked")
    story.complete("asked")


def _batch(story: Families) -> None:
    """Jobs of a batch are there before its run begins and before it asks for them, and say their own names."""
    story.enqueue("batch", task=RUN_BATCH)
    story.run(story.child(0, "batch", "jobs", id="own-name"))
    story.claim("batch")
    story.run(story.child(1, "batch", "jobs", id="in-between"))
    story.ask("batch", "jobs", count=0, is_open=True)
    story.run(story.child(2, "batch", "jobs", id="another"))
    story.do("batch", Join(step="jobs", completed=((0, 2),), count=3))
    story.end("batch", "jobs", "map", target="send")
    story.complete("batch")


def _batches_that_began_late(story: Families) -> None:
    """All jobs of one batch came between its claim and its step; another was cancelled before its client knew."""
    story.begin("late-batch", task=RUN_BATCH)
    for item in range(2):
        story.run(story.child(item, "late-batch", BATCH_STEP))
    story.ask("late-batch", BATCH_STEP, count=0, is_open=True)
    story.do("late-batch", Join(step=BATCH_STEP, completed=((0, 1),), count=2))
    story.end("late-batch", BATCH_STEP, "map", target="send")
    story.complete("late-batch")
    story.enqueue("gone-batch", task=RUN_BATCH)
    story.do("gone-batch", CancelJob())
    story.do(story.child(0, "gone-batch", BATCH_STEP), CancelJob())


def _again(story: Families) -> None:
    """A rerun copies the end of a step that the run before recorded."""
    story.begin("source")
    copied = story.end("source", "charge", result=msgspec.Raw(b'"ch_1"'), input_sha256="ab" * 8)
    newest = story.complete("source")
    rerun(story, copied, newest)
    story.complete("again")


#: What runs do, a part at a time.
PARTS: tuple[Callable[[Families], None], ...] = (
    _inline,
    _waits,
    _map,
    _stopped,
    _graph,
    _cancelled,
    _paused,
    _by_hand,
    _batch,
    _batches_that_began_late,
    _again,
)


def sound() -> Families:
    """A ledger in which runs do all that they can, and nothing is wrong."""
    story = Families()
    for part in PARTS:
        part(story)
    return story


def rerun(story: Families, copied: int, newest: int, result: bytes = b'"ch_1"', **source: Any) -> None:
    """Begin a rerun, and let it copy the step whose end is at `copied`."""
    made_of: dict[str, Any] = {"queue": "email", "job": "source", "steps": 1}
    made_of |= {"hash": story.messages[newest - 1].hash, **source}
    story.begin("again", rerun_of=RerunOf(sequence=newest, from_step="mail", **made_of))
    where = CopiedEnd(sequence=copied, sha256=story.messages[copied - 1].hash)
    story.end("again", "charge", result=msgspec.Raw(result), input_sha256="ab" * 8, copied=where)
