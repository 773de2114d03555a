"""`jobs debug` of runs: recorded steps are given back, only what was under way is executed, and nothing is written."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.working import LIMIT_S, working

from jobledger.ledger import Ledger, Signal, TaskRegistry
from jobledger.ledger.server import EmbeddedServer

go_on = Signal("go_on", str)

APP = """
from jobledger.ledger import Run, Signal, step, task, workflow

go_on = Signal("go_on", str)

def note(what):
    with open({notes!r}, "a") as file:
        file.write(what + "\\n")

@task(queue="kids")
async def page(number: int) -> str:
    return f"page {{number}}"

@step
async def reserve(order: str) -> str:
    note("reserve")
    return order + "x" * 100_000

@step(max_attempts=1)
async def charge(reserved: str, at: str) -> str:
    note("charge")
    {body}

@workflow(queue="runs", max_attempts=1)
async def order(run: Run, order: str) -> list[str]:
    reserved = await run.step(reserve, order)
    pages = await run.map(page, range(12))
    first = await run.wait(go_on)
    second = await run.wait(go_on)
    charged = await run.step(charge, reserved, first)
    return [charged, second, pages[-1]]
"""


class Debug(CommandLine):
    """A ledger with a run, and the code that is to run it again."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(url, capsys)
        self.folder = folder
        self.app = f"app_{secrets.token_hex(4)}"

    @property
    def notes(self) -> list[str]:
        """What was executed, a line each."""
        file = self.folder / "notes"
        return file.read_text().split() if file.exists() else []

    def write_app(self, body: str) -> None:
        """Write the code; that of an earlier moment is forgotten."""
        self.app = f"app_{secrets.token_hex(4)}"
        text = APP.format(notes=str(self.folder / "notes"), body=body)
        (self.folder / f"{self.app}.py").write_text(text)

    def work(self, begin: Callable[[Ledger, TaskRegistry], Awaitable[Any]]) -> None:
        """Begin something and let a worker bring it to its end."""

        async def work(ledger: Ledger) -> None:
            registry = TaskRegistry.load([self.app])
            job = await begin(ledger, registry)
            async with working(ledger, registry=registry, concurrency=4):
                await job.wait(timeout_s=LIMIT_S)

        self.with_ledger(work)

    def debug(self, job_id: str, *words: str) -> Answer:
        rows = str(self.folder / "rows.db")
        return self.run("jobs", "debug", job_id, "--app", self.app, *words, *self.where, "--projection", rows)

    def head(self) -> int:
        async def head(ledger: Ledger) -> int:
            return (await ledger.log.head()).last_sequence

        return self.with_ledger(head)


@pytest.fixture
def failed(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Debug:
    """A run that is a dead letter: its step `charge` raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Debug(nats_server.url, capsys, tmp_path)
    made.write_app('raise RuntimeError("the bank is closed")')

    async def begin(ledger: Ledger, registry: TaskRegistry) -> Any:
        job = await ledger.enqueue(registry.get("order").options(id="order-77"), "77")
        await ledger.signal(job, go_on, "noon")
        await ledger.signal(job, go_on, "later")
        async with working(ledger, registry.get("order")), asyncio.timeout(LIMIT_S):
            while not (await job.snapshot()).awaited:  # its first attempt waits for the pages
                await asyncio.sleep(0.01)
        return job

    made.work(begin)
    assert made.notes == ["reserve", "charge"]
    return made


def test_an_attempt_of_a_run_executes_only_what_was_under_way(failed: Debug) -> None:
    head = failed.head()
    again = failed.debug("order-77")
    assert (again.code, "the bank is closed" in again.out) == (1, True), again.err
    assert failed.notes == ["reserve", "charge", "charge"]  # what it reserved is given back
    failed.write_app('return f"charged {reserved[:3]} at {at}"')
    (mended,) = failed.debug("order-77", "--json").lines
    assert mended["status"] == "completed"
    assert mended["steps_given_back"][0] == "reserve"
    assert mended["steps_executed"][-1] == "charge"
    # The signals are taken in their order, and the ends of the children read, as the attempt did.
    assert mended["events"][-1]["result"] == ["charged 77x at noon", "later", "page 11"]
    shown = failed.debug("order-77").out
    assert "steps given back" in shown
    assert "steps executed here" in shown
    assert failed.head() == head


def test_an_attempt_that_asks_for_children_waits_for_them_and_makes_none(failed: Debug) -> None:
    head = failed.head()
    (first,) = failed.debug("order-77", "--attempt", "1", "--json").lines
    assert (first["status"], first["recorded"]["type"]) == ("waiting", "paused")
    assert first["steps_executed"] == ["reserve", "page"]
    assert failed.head() == head


def test_the_first_attempt_of_a_rerun_copies_and_executes_the_rest(failed: Debug) -> None:
    failed.write_app('return f"charged {reserved[:3]} at {at}"')

    async def rerun(ledger: Ledger) -> None:
        await ledger.rerun("order-77", from_step="charge", id="again")

    failed.with_ledger(rerun)
    head, notes = failed.head(), failed.notes
    (found,) = failed.debug("again", "--json").lines
    assert (found["status"], found["steps_executed"]) == ("completed", ["charge"])
    assert found["steps_given_back"] == ["reserve", "page", "go_on", "go_on#2"]
    assert found["events"][-1]["result"] == ["charged 77x at noon", "later", "page 11"]
    assert (failed.notes, failed.head()) == ([*notes, "charge"], head)
