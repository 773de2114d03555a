"""Large inputs and results: stored, gone and differing are told apart by every command, and a check reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.jetstream import api
from tests.support.working import ended, working

from jobledger.audit.verify.references import References
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.events import Queued

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

SIZE = 100_000


@task(queue="large", max_attempts=1)
async def double(text: str) -> str:
    return text * 2


class Cli(NamedTuple):
    """Commands on a ledger with two large inputs and one large result."""

    run: CommandLine
    projection: Path

    def __call__(self, *words: str) -> Answer:
        return self.run.run(*words, *self.run.where, "--projection", str(self.projection))


async def _fill(ledger: Ledger) -> None:
    async with working(ledger, double):
        await ended(await ledger.enqueue(double.options(id="done"), "a" * SIZE))
    await ledger.enqueue(double.options(id="waits"), "b" * SIZE)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "300")
    run = CommandLine(nats_server.url, capsys)
    run.with_ledger(_fill)
    return Cli(run, tmp_path / "projection.db")


async def lose_results(ledger: Ledger) -> None:
    assert (await api(ledger.inbox, f"STREAM.PURGE.OBJ_{ledger.names.results_bucket}", {}))["success"]


async def lose_inputs(ledger: Ledger) -> None:
    assert (await api(ledger.inbox, f"STREAM.PURGE.OBJ_{ledger.names.payloads_bucket}", {}))["success"]


async def alter_input(ledger: Ledger) -> None:
    reference = (await (await ledger.job("waits")).snapshot()).order.input_ref
    assert reference is not None
    store: Any = await ledger.connection.jetstream().object_store(ledger.names.payloads_bucket)
    await store.put(reference.sha256, b'{"text":"another"}')


async def alter_result(ledger: Ledger) -> None:
    reference = (await (await ledger.job("done")).snapshot()).result_ref
    assert reference is not None
    store: Any = await ledger.connection.jetstream().object_store(ledger.names.results_bucket)
    await store.put(reference.sha256, b'"another"')


def large_values(answer: Answer) -> dict[str, int]:
    found: dict[str, int] = answer.lines[0]["large_values"]
    return {name: count for name, count in found.items() if count}


def test_a_check_says_how_many_it_did_not_read_and_reads_them_when_asked(cli: Cli) -> None:
    answer = cli("audit", "verify", "--json")
    assert (answer.code, large_values(answer)) == (0, {"count": 3, "unread": 3})
    assert any(each.startswith("the 3 large inputs and results") for each in answer.lines[0]["not_proven"])
    read = cli("audit", "verify", "--with-payloads", "--json")
    assert (read.code, large_values(read)) == (0, {"count": 3, "stored": 3})
    assert not any("large input" in each for each in read.lines[0]["not_proven"])

    cli.run.with_ledger(lose_results)
    answer = cli("audit", "verify", "--with-payloads")
    assert answer.code == 0, "a result expires"
    assert "large values: 2 of 3 are stored, 1 gone (results expire after a week)" in answer.out
    cli.run.with_ledger(alter_input)
    assert cli("audit", "verify").code == 0
    answer = cli("audit", "verify", "--with-payloads", "--json")
    assert (answer.code, answer.lines[0]["broken"]) == (4, {"payload": 1})
    assert large_values(answer) == {"count": 3, "stored": 1, "gone": 1, "differs": 1}
    assert answer.lines[0]["violations"][0]["job"] == "large/waits"
    cli.run.with_ledger(lose_inputs)
    answer = cli("audit", "verify", "--with-payloads", "--json")
    assert (answer.code, answer.lines[0]["broken"]) == (4, {"payload": 2})


def test_a_result_that_differs_is_a_violation(cli: Cli) -> None:
    cli.run.with_ledger(alter_result)
    answer = cli("audit", "verify", "--with-payloads", "--json")
    assert (answer.code, answer.lines[0]["broken"]) == (4, {"payload": 1})


def test_every_command_says_stored_gone_or_differs(cli: Cli, tmp_path: Path) -> None:
    def states(job: str) -> list[str]:
        lines = cli("audit", "trail", job, "--json").lines[0]["lines"]
        return [each["state"] for line in lines for each in line["large_values"]]

    assert (states("done"), states("waits")) == (["stored", "stored"], ["stored"])
    assert "its large value (200,002 bytes) is stored" in cli("audit", "trail", "done").out
    cli.run.with_ledger(lose_results)
    cli.run.with_ledger(alter_input)
    assert (states("done"), states("waits")) == (["stored", "gone"], ["differs"])
    assert cli("jobs", "show", "waits", "--json").lines[0]["input"]["state"] == "differs"
    assert cli("jobs", "show", "done", "--json").lines[0]["result"]["state"] == "gone"
    assert "gone: 200,002 bytes" in cli("jobs", "show", "done").out
    assert "differs from what was stored: " in cli("jobs", "show", "waits").out
    exported = cli.run.run("audit", "export", str(tmp_path / "export"), *cli.run.where)
    assert "1 stored" in exported.out
    assert "1 gone, 1 differ from what was stored" in exported.out
    app = ("--app", "tests.integration.test_audit_payloads")
    debugged = cli("jobs", "debug", "waits", *app)
    assert (debugged.code, "differs from what was stored" in debugged.err) == (1, True), debugged


def test_a_value_that_is_both_a_result_and_an_input_lasts_as_an_input(cli: Cli) -> None:
    async def chain(ledger: Ledger) -> list[str]:
        async with working(ledger, double):
            # The result of one job, the input of the next: the same text under one digest.
            first = await ledger.enqueue(double.options(id="first"), "c" * SIZE)
            text = await first.result(timeout_s=10)
            reference = (await first.snapshot()).result_ref
            assert reference is not None
        references = References()
        async for batch in ledger.log.read():
            references.add(batch)
            as_input = [
                _as_input(each, reference.sha256) for each in batch if getattr(each.event, "result_ref", None)
            ]
            references.add(each for each in as_input if each is not None)
        found: list[str] = [each.store for each in references if each.sha256 == reference.sha256]
        references.close()
        assert len(text) == 2 * SIZE
        return found

    assert cli.run.with_ledger(chain) == ["inputs"]


def _as_input(stored: Any, sha256: str) -> Any:
    """Return the event as that of a job whose input is this event's result."""
    if stored.event.result_ref.sha256 != sha256:
        return None
    fields = {name: getattr(stored.event, name) for name in ("job", "queue", "task", "at", "by", "prev")}
    event = Queued(**fields, input_ref=stored.event.result_ref)
    return msgspec.structs.replace(stored, event=event, stream_sequence=stored.stream_sequence + 1)
