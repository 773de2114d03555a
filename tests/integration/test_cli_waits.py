"""`jobs why` on a run in each kind of wait: it names what the run waits for, and a command that can be typed as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import CommandLine
from tests.support.runs import step
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import Ledger
from jobledger.ledger.model.clock import SystemClock
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    DeadLetter,
    Enqueue,
    FailStep,
    Join,
    Pause,
    RequestPause,
    StartStep,
)
from jobledger.ledger.model.events import ErrorInfo, Order
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.server import EmbeddedServer

Make = Callable[[Ledger, str], Awaitable[Any]]
START = "jobledger worker --app ... --queue orders"


class Wait(NamedTuple):
    """A run in one kind of wait: how it came there, what is said, and what a person types next (`ID` is its id)."""

    make: Make
    sentence: str
    hint: str


async def lease(ledger: Ledger, worker: str = "w1", *tasks: str) -> None:
    """Let a worker of the run's queue live."""
    now = ledger.clock.now()
    info = WorkerInfo(
        worker=worker, host="h", pid=1, queues=("orders",), started_at=now, renewed_at=now, tasks=tasks
    )
    await ledger.leases.renew(info, 0)


async def enqueued(ledger: Ledger, job_id: str, **order: Any) -> None:
    ref = runs.ref_of(job_id)
    await ledger.execute(ref, Enqueue(ref=ref, task="order", order=Order(**order)))


async def limited(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id, limits=("tenant:acme",))


async def with_a_deadline(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id, deadline_s=3_600.0)


async def of_another_version(ledger: Ledger, job_id: str) -> None:
    await lease(ledger, "w2", "order", "order@1")
    await enqueued(ledger, job_id, version="2")


async def in_a_step(ledger: Ledger, job_id: str) -> None:
    await lease(ledger)
    await runs.running(ledger, job_id)
    await runs.do(ledger, job_id, step(StartStep, "wire", kind="once"))


async def asked_to_pause(ledger: Ledger, job_id: str) -> None:
    await runs.running(ledger, job_id)
    await runs.do(ledger, job_id, RequestPause())


async def asked_to_end(ledger: Ledger, job_id: str) -> None:
    await runs.running(ledger, job_id)
    await runs.do(ledger, job_id, CancelJob())


async def on_a_dead_worker(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id)
    await runs.do(ledger, job_id, Claim(worker="dead", lease_s=1))


class Earlier(SystemClock):
    """A clock that is behind."""

    def now(self) -> datetime:
        return datetime.now(UTC) - timedelta(minutes=3)


async def late(ledger: Ledger, job_id: str) -> None:
    ledger.clock = Earlier()
    await runs.running(ledger, job_id)
    until = ledger.clock.now() + timedelta(seconds=10)
    await runs.do(ledger, job_id, step(StartStep, "sleep", kind="sleep", until=until))
    await runs.do(ledger, job_id, Pause(epoch=0, steps=("sleep",), until=until))


async def for_a_call(ledger: Ledger, job_id: str) -> None:
    await runs.running(ledger, job_id)
    order, items = ChildOrder(task="fetch", queue="pages", count=1), msgspec.Raw(b"[{}]")
    await runs.do(
        ledger, job_id, step(StartStep, "pages", kind="call", target="fetch", order=order, items=items)
    )
    await runs.do(ledger, job_id, Pause(epoch=0, steps=("pages",)))
    await runs.child(ledger, job_id, 0)


async def for_a_held_child(ledger: Ledger, job_id: str) -> None:
    await runs.for_children(ledger, job_id, made=0, count=1)
    await runs.child(ledger, job_id, 0, limits=("tenant:acme",))


async def fail_child(ledger: Ledger, job_id: str) -> None:
    """End the first child of a run as a dead letter, and count that."""
    await runs.do(ledger, f"{job_id}-2-0", Claim(worker="w3", lease_s=600), queue="pages")
    dead = DeadLetter(reason="rejected", epoch=0, error=runs.BOOM)
    await runs.do(ledger, f"{job_id}-2-0", dead, queue="pages")
    await runs.do(ledger, job_id, Join(step="pages", failed=((0, 0),)))


async def for_a_child_after_a_failed_one(ledger: Ledger, job_id: str) -> None:
    await runs.for_children(ledger, job_id, count=3, made=2)
    await fail_child(ledger, job_id)


async def for_a_dead_child(ledger: Ledger, job_id: str) -> None:
    await runs.for_children(ledger, job_id, count=3, made=3, on_dead_letter="wait")
    await runs.do(ledger, f"{job_id}-2-1", Claim(worker="w3", lease_s=600), queue="pages")
    dead = DeadLetter(reason="rejected", epoch=0, error=runs.BOOM)
    await runs.do(ledger, f"{job_id}-2-1", dead, queue="pages")


async def dead_by_a_child(ledger: Ledger, job_id: str) -> None:
    await runs.for_children(ledger, job_id, count=1, made=1)
    await fail_child(ledger, job_id)
    await runs.do(ledger, job_id, Claim(worker="w1", lease_s=600))
    error = ErrorInfo(kind="exception", type="ChildFailedError", message="item 0 of step 'pages' failed")
    await runs.do(ledger, job_id, DeadLetter(reason="rejected", epoch=0, error=error))


async def diverged(ledger: Ledger, job_id: str) -> None:
    await runs.running(ledger, job_id)
    error = ErrorInfo(kind="exception", type="DivergedError", message="step 'wire' was recorded")
    await runs.do(ledger, job_id, DeadLetter(reason="diverged", epoch=0, error=error))


async def paused(ledger: Ledger, job_id: str) -> None:
    await runs.for_signal(ledger, job_id)
    await runs.do(ledger, job_id, RequestPause(reason="the bank is closed"))


async def going_back(ledger: Ledger, job_id: str) -> None:
    await runs.for_signal(ledger, job_id)
    await runs.do(ledger, job_id, CancelJob(reason="the wrong order"))


async def between_tries_of_an_undo(ledger: Ledger, job_id: str) -> None:
    await going_back(ledger, job_id)
    await runs.do(ledger, job_id, Claim(worker="w1", lease_s=600))
    at = ledger.clock.now() + timedelta(minutes=5)
    await runs.do(ledger, job_id, step(FailStep, "undo/refund", kind="undo", error=runs.BOOM, retry_at=at))
    await runs.do(ledger, job_id, Pause(epoch=0, steps=("undo/refund",), until=at, undos=1))


async def for_two_things(ledger: Ledger, job_id: str) -> None:
    await runs.running(ledger, job_id)
    until = ledger.clock.now() + timedelta(days=1)
    await runs.do(ledger, job_id, step(StartStep, "yes/approved", kind="wait", target="approved"))
    await runs.do(ledger, job_id, step(StartStep, "no/sleep", kind="sleep", until=until))
    await runs.do(ledger, job_id, Pause(epoch=0, steps=("yes/approved", "no/sleep"), until=until))


WAITS = {
    "queued": Wait(enqueued, "no worker serves queue orders", START),
    "deadline": Wait(with_a_deadline, "; if it has not ended by its deadline, 20", "jobledger doctor"),
    "limited": Wait(
        limited,
        "nobody defined limit tenant:acme; it is number 1 of its line",
        "jobledger limits set tenant --slots 10",
    ),
    "going-back": Wait(
        going_back,
        "no worker serves queue orders; it was cancelled (the wrong order), and ends once a worker has run the undos",
        START,
    ),
    "step": Wait(in_a_step, "runs on worker w1 for", "jobledger jobs cancel ID"),
    "to-pause": Wait(asked_to_pause, "and was asked to pause", "jobledger jobs show ID --tree"),
    "to-end": Wait(asked_to_end, "and was asked to end", "jobledger jobs show ID --tree"),
    "version": Wait(
        of_another_version,
        "2 workers serve queue orders, none has version 2 of workflow order, with which this run began",
        START,
    ),
    "lost": Wait(on_a_dead_worker, "the lease of worker dead is over", "jobledger workers list"),
    "signal": Wait(
        runs.for_signal,
        "signal 'approved' (step 'approved'",
        "jobledger jobs signal ID approved --value '...'",
    ),
    "two": Wait(
        for_two_things,
        "): nobody has sent it, or for the end of sleep 'no/sleep'",
        "jobledger jobs signal ID approved --value '...'",
    ),
    "sleep": Wait(runs.for_time, "meanwhile, and goes on by itself", "jobledger jobs cancel ID"),
    "late": Wait(late, "(due for 3 min: is a worker running its timers?)", "jobledger doctor"),
    "retry": Wait(runs.for_retry, "try 1 failed: ConnectionError: the bank", "jobledger jobs cancel ID"),
    "undo": Wait(
        between_tries_of_an_undo, "the next try of step 'undo/refund' at ", "jobledger jobs show ID --tree"
    ),
    "call": Wait(for_a_call, "it waits for 1 of 1 child of 'fetch'", "jobledger jobs why ID-2-0"),
    "map": Wait(runs.for_children, "it waits for 3 of 4 children of 'fetch'", "jobledger jobs why ID-2-0"),
    "held-child": Wait(for_a_held_child, "ID-2-0 (held by tenant:acme)", "jobledger jobs why ID-2-0"),
    "failing": Wait(
        for_a_child_after_a_failed_one, "1 ended, 1 of these not completed", "jobledger jobs why ID-2-1"
    ),
    "dead-child": Wait(
        for_a_dead_child,
        "0 ended: ID-2-1 (dead letter), ID-2-0 (queued), ID-2-2 (queued); a dead letter waits for a person",
        "jobledger dlq requeue ID-2-1 --queue pages",
    ),
    "graph": Wait(runs.for_graph, "it waits for 1 of 4 children of 'graph'", "jobledger jobs show ID --tree"),
    "batch": Wait(
        runs.for_batch, "the program that adds its jobs, of task 'mail'", "jobledger jobs show ID --tree"
    ),
    "paused": Wait(paused, "a person paused it (the bank is closed)", "jobledger jobs resume ID"),
    "child-failed": Wait(
        dead_by_a_child,
        "(ChildFailedError: item 0 of step 'pages' failed); requeued it fails again",
        "jobledger jobs rerun ID --failed",
    ),
    "diverged": Wait(diverged, "deploy code that fits, then requeue it", "jobledger dlq requeue ID"),
}


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> CommandLine:
    monkeypatch.setenv("JOBLEDGER_PROJECTION", str(tmp_path / "rows.db"))
    on_a_terminal(monkeypatch)
    return CommandLine(nats_server.url, capsys)


def problems(cli: CommandLine, names: list[str]) -> list[str]:
    """Make some runs; return a line for each thing that is not said of them, or not readable."""

    async def make(ledger: Ledger) -> None:
        for name in names:
            await WAITS[name].make(ledger, name)

    cli.with_ledger(make)
    wrong: list[str] = []
    for name in names:
        (found,) = cli.run("jobs", "why", name, "--json", *cli.where).lines
        wait = WAITS[name]
        if wait.sentence.replace("ID", name) not in found["sentence"] or found["hint"] != hint_of(name):
            wrong.append(f"{name}: {found['sentence']} -> {found['hint']}")
        if any(each["sequence"] >= found["event_sequence"] for each in found["waits"]):
            wrong.append(f"{name}: {found['event_sequence']} is not behind {found['waits']}")
        for words in (("show", name, "--tree"), ("graph", name)):
            shown = cli.run("jobs", *words, *cli.where)
            if shown.code or max(map(len, unstyled(shown.out))) > 80:
                wrong.append(f"{name}, {words[0]}: {shown}")
    return wrong


def hint_of(name: str) -> str:
    return WAITS[name].hint.replace("ID", name)


def test_why_names_what_to_type_next_for_each_kind_of_wait(cli: CommandLine) -> None:
    names = list(WAITS)
    living = names.index("step")  # from here on some worker lives
    assert problems(cli, names[:living]) == []
    assert problems(cli, names[living:]) == []
    for hint in dict.fromkeys(map(hint_of, names)):
        words = shlex.split(hint.replace("'...'", "true"))[1:]
        if words[0] in {"worker", "doctor"} or words[1] in {"show", "why"}:
            continue  # it goes on working, has something to complain of, or changes nothing
        answer = cli.run(*words, *cli.where, *(("--yes",) if words[0] == "dlq" else ()))
        assert answer.code == 0, (hint, answer)
