"""A ledger that is full: each refusal names the way out, and the way out works while clients go on."""

from __future__ import annotations

import functools

import anyio
import pytest
from tests.support.command_line import CommandLine
from tests.support.full_ledgers import unthrottled

from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.model.errors import LedgerFullError
from jobledger.ledger.server import EmbeddedServer

SMALL = 128 << 10


@task(queue="full")
async def work(text: str) -> None:
    """Stay queued: no worker runs."""


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(nats_server.url, capsys)


async def _fill(cli: CommandLine) -> int:
    async with connect(cli.url, environment=cli.environment, ledger_bytes_max=SMALL) as ledger:
        unthrottled(ledger)
        with pytest.raises(LedgerFullError, match="jobledger ledger resize SIZE"):
            await ledger.enqueue_many(work, ({"text": "x" * 400} for _ in range(SMALL)))
        return (await ledger.log.head()).stored_bytes


async def _enqueue(ledger: Ledger) -> bool:
    return (await ledger.enqueue(work, text="one more")).created


def test_a_full_ledger_is_given_room_and_takes_jobs_again(cli: CommandLine) -> None:
    stored = anyio.run(functools.partial(_fill, cli))
    warned = cli.run("doctor", *cli.where).out
    assert "`jobledger ledger resize SIZE`" in " ".join(warned.split())
    resized = cli.run("ledger", "resize", "1MiB", "--json", *cli.where)
    assert resized.code == 0
    assert resized.lines[0] == {
        "stream": f"{cli.environment.upper()}_LEDGER",
        "stored_bytes": stored,
        "bytes_max": 1 << 20,
        "bytes_max_before": SMALL,
    }
    assert cli.with_ledger(_enqueue)
    again = cli.run("ledger", "resize", "1MiB", *cli.where)
    assert "and may hold 1.0 MiB (before: 1.0 MiB)" in again.out


def test_a_ledger_is_not_made_smaller_than_what_it_holds(cli: CommandLine) -> None:
    anyio.run(functools.partial(_fill, cli))
    refused = cli.run("ledger", "resize", "100KiB", *cli.where)
    assert refused.code == 4
    assert "so it cannot be made as small as 100.0 KiB" in refused.err
    assert "`jobledger audit archive`" in refused.err
    small = cli.run("ledger", "resize", "1KiB", *cli.where)
    assert (small.code, "from 64.0 KiB to less than" in small.err) == (2, True)
    absurd = cli.run("ledger", "resize", "999999999999999TiB", *cli.where)
    assert (absurd.code, "from 64.0 KiB to less than" in absurd.err) == (2, True)
    wrong = cli.run("ledger", "resize", "much", *cli.where)
    assert (wrong.code, "'much' is no size such as 8GiB" in wrong.err) == (2, True)
    vast = cli.run("ledger", "resize", "900TiB", *cli.where)
    assert (vast.code, "the server has no room for" in vast.err) == (4, True)
