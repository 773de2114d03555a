"""`jobledger workflows list|versions|check` on a real server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import Answer, CommandLine
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.commands import DeadLetter
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

CODE = """
from jobledger.ledger import Run, Signal, step, workflow

approved = Signal("approved", dict)

@step
async def charge() -> str:
    raise AssertionError("nothing is called")

@step
async def wire() -> str:
    raise AssertionError("nothing is called")

@workflow(queue="orders"VERSION)
async def order(run: Run) -> str:
    await run.step(ASKED)
    await run.wait(approved, timeout_s=3 * 86_400)
    return ""
"""


class Workflows(CommandLine):
    """The command line, its projection and some code in the test's folder."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(url, capsys)
        self.folder = folder

    def workflows(self, *words: str) -> Answer:
        return self.run("workflows", *words, *self.where, "--projection", str(self.folder / "rows.db"))

    def code(self, asked: str, version: str = "") -> str:
        """Write a module whose workflow asks for that first; return its name."""
        file = self.folder / f"code_{secrets.token_hex(4)}.py"
        text = CODE.replace("ASKED", asked).replace("VERSION", f', version="{version}"' if version else "")
        file.write_text(text, encoding="utf-8")
        return str(file)


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Workflows:
    return Workflows(nats_server.url, capsys, tmp_path)


async def _two_versions(ledger: Ledger) -> None:
    await runs.for_signal(ledger, "order-77")  # version 2
    for number in range(3):
        await runs.for_time(ledger, f"sleeps-{number}")
    await runs.for_retry(ledger, "retries")
    await runs.running(ledger, "dead", version="1")
    await runs.do(ledger, "dead", DeadLetter(reason="diverged", epoch=0))


def test_each_version_is_listed_with_its_open_runs(cli: Workflows) -> None:
    cli.make_ledger()
    assert cli.workflows("list").out == "no workflows: no living worker has one, and the ledger has no run\n"
    cli.with_ledger(_two_versions)
    rows = cli.workflows("list", "--json").lines
    assert [(each["workflow"], each["version"], each["open"], each["dead_letters"]) for each in rows] == [
        ("order", "", {"waiting": 4}, 0),
        ("order", "1", {}, 1),
        ("order", "2", {"waiting": 1}, 0),
    ]
    assert {each["in_code"] for each in rows} == {None}
    (third,) = [
        each
        for each in cli.workflows("list", "--app", cli.code("charge", "3"), "--json").lines
        if each["in_code"]
    ]
    assert (third["version"], third["queues"], third["open"], third["is_free"]) == ("3", ["orders"], {}, True)
    said = cli.workflows("versions").out
    assert "not while 1 dead letter may be requeued" in said
    assert said.count("no: open runs need it") == 2


def test_a_worker_says_which_versions_it_has(cli: Workflows) -> None:
    registry = TaskRegistry.load([cli.code("charge", "5")])

    async def work(ledger: Ledger) -> dict[str, Any]:
        worker = Worker(ledger, registry)
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            with anyio.fail_after(20):
                while True:
                    answer = await anyio.to_thread.run_sync(lambda: cli.workflows("list", "--json").lines)
                    if answer and answer[0]["announced"] and answer[0]["workers"]:
                        worker.stop()
                        return answer[0]
                    await anyio.sleep(0.05)
        raise AssertionError

    found = cli.with_ledger(work)
    assert (found["workflow"], found["version"], found["workers"], found["queues"]) == (
        "order",
        "5",
        1,
        ["orders"],
    )


def test_runs_that_fit_are_counted_and_nothing_is_appended(cli: Workflows) -> None:
    async def make(ledger: Ledger) -> None:
        await runs.for_time(ledger, "sleeps")
        await runs.for_signal(ledger, "order-77")

    cli.with_ledger(make)
    before = cli.with_ledger(lambda ledger: ledger.log.head())
    answer = cli.workflows("check", "--app", cli.code("charge"), "--open", "--json")
    assert answer.code == 0, answer.err
    (found,) = answer.lines
    assert (found["runs"], found["fits"], found["diverges"], found["missing"]) == (2, 1, 0, 1)
    assert found["named"][0]["more"] == "the code has no workflow order of version 2"
    assert cli.with_ledger(lambda ledger: ledger.log.head()) == before
    said = cli.workflows("check", "--app", cli.code("charge", "2"), "--since", "1h").out
    assert said == "2 runs read; fitting this code, as far as they are recorded: 2\n"
    missing = cli.workflows("check", "--app", cli.code("charge", "3"), "--since", "1h").out
    assert (
        "of a workflow or version that this code does not have: 1\n  order-77 (order v2, waiting): the code has no"
        in missing
    )


def test_each_run_that_diverges_is_named_and_the_first_is_the_error(cli: Workflows) -> None:
    async def make(ledger: Ledger) -> None:
        for number in range(3):
            await runs.for_time(ledger, f"run-{number}")

    cli.with_ledger(make)
    code = cli.code('wire.options(name="charge")')
    answer = cli.workflows("check", "--app", code, "--open")
    assert answer.code == 4
    assert answer.err.startswith(
        "jobledger: 3 runs diverge from this code, the first is run-0 (orders): step 'charge' was recorded at stream sequence "
    )
    assert answer.err.endswith("as step charge; the code asks for step wire\n")
    for number in range(3):
        assert f"  run-{number} (order, waiting): step 'charge' was recorded at stream sequence" in answer.out
    (found,) = cli.workflows("check", "--app", code, "--open", "--json").lines
    (first, *_) = found["named"]
    assert (first["id"], first["step"], first["recorded"], first["asked"]) == (
        "run-0",
        "charge",
        "as step charge",
        "step wire",
    )
    assert found["diverges"] == 3
    later = cli.workflows("check", "--app", code, "--since", "1s ahead")
    assert later.code == 2


def test_bad_words_are_refused_before_anything_is_read(cli: Workflows) -> None:
    cli.make_ledger()
    for words, said in (
        (("check", "--app", cli.code("charge")), "say which runs to check: --open, or --since TIME"),
        (("check", "--app", cli.code("charge"), "--open", "--since", "1h"), "say which runs"),
        (("check", "--open"), "no tasks are loaded"),
        (("check", "--open", "--app", "no.such.module"), "no module"),
    ):
        answer = cli.workflows(*words)
        assert (answer.code, said in answer.err) == (2, True), answer.err


def test_tables_fit_into_80_columns(cli: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.with_ledger(_two_versions)
    on_a_terminal(monkeypatch, 80)
    for words in (("list",), ("versions",), ("check", "--app", cli.code("charge"), "--open")):
        said = unstyled(cli.workflows(*words).out)
        assert max(map(len, said)) <= 80, said
