"""Seals on a real server: the sealer seals what comes, two agree, and the commands show and publish what was sealed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import signal
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from tests.support.working import LIMIT_S, Connect

from jobledger.audit.seals.keys import Signer, make_keys, read_signer
from jobledger.audit.seals.seals import Seal, read_published, read_seals
from jobledger.audit.verify import verify
from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect, task
from jobledger.workers.reactors.reactor import host
from jobledger.workers.reactors.sealer import Sealer, SealingConfig

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

anyio_mark = pytest.mark.anyio


@task(queue="work")
async def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    make_keys(tmp_path / "key.pem")
    return read_signer(tmp_path / "key.pem")


@contextlib.asynccontextmanager
async def sealing(
    ledger: Ledger, signer: Signer, config: SealingConfig
) -> AsyncGenerator[asyncio.Queue[Seal]]:
    """Host a sealer; the queue gets what it sealed."""
    loop, made = asyncio.get_running_loop(), asyncio.Queue[Seal]()

    def on_seal(seal: Seal) -> None:
        loop.call_soon_threadsafe(made.put_nowait, seal)

    sealer = Sealer(ledger, signer, config, on_seal=on_seal)
    hosted = asyncio.create_task(host(ledger, sealer))
    try:
        yield made
    finally:
        hosted.cancel()
        await asyncio.gather(hosted, return_exceptions=True)


@anyio_mark
async def test_the_sealer_seals_after_so_many_events_and_after_so_long(
    connected: Connect, signer: Signer
) -> None:
    async with connected() as ledger, sealing(ledger, signer, SealingConfig(events=5, interval_s=2)) as made:
        await ledger.enqueue_many(double, ({"number": number} for number in range(5)))
        first = await asyncio.wait_for(made.get(), LIMIT_S)
        await ledger.enqueue(double, 6)  # one alone: after the interval
        second = await asyncio.wait_for(made.get(), LIMIT_S)
        assert first.seal.from_sequence == 1
        assert second.seal.from_sequence == first.seal.to_sequence + 1
        assert await read_seals(ledger.log) == [first, second]
        assert (await verify(ledger.log)).sound


@anyio_mark
async def test_two_sealers_leave_one_chain_of_seals(connected: Connect, signer: Signer) -> None:
    config = SealingConfig(events=3, interval_s=1)
    async with (
        connected() as ledger,
        connected() as other,
        sealing(ledger, signer, config),
        sealing(other, signer, config),
    ):
        for number in range(20):
            await ledger.enqueue(double, number)
        with anyio.fail_after(LIMIT_S):
            while True:
                seals = await read_seals(ledger.log)
                if seals and seals[-1].seal.to_sequence >= 20:
                    break
                await asyncio.sleep(0.1)
        ends = [(each.seal.from_sequence, each.seal.to_sequence) for each in seals]
        assert ends[0][0] == 1
        assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ends))
        assert (await verify(ledger.log)).sound


class Cli:
    """`jobledger audit` on an environment with some jobs in it."""

    def __init__(self, server: EmbeddedServer, environment: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.where = ["--url", server.url, "--environment", environment]
        self._server, self.environment, self.capsys = server, environment, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = run(["audit", *words, *([] if words[0] == "keygen" else self.where)])
        shown = self.capsys.readouterr()
        return code, shown.out, shown.err

    def enqueue(self, count: int) -> None:
        async def call() -> None:
            async with connect(
                self._server.url, environment=self.environment, ledger_bytes_max=16 << 20
            ) as ledger:
                for number in range(count):
                    await ledger.enqueue(double, number)

        anyio.run(call)


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(nats_server, f"t_{secrets.token_hex(6)}", capsys)
    made.enqueue(3)
    return made


def test_seals_are_made_published_and_listed(cli: Cli, tmp_path: Path) -> None:
    key, kept = str(tmp_path / "seal.pem"), tmp_path / "seals.jsonl"
    code, out, _ = cli("keygen", key)
    assert code == 0
    assert "keep it secret" in out
    assert cli("seals")[1] == "no seals; make the first with `jobledger audit seal --key FILE`\n"
    code, out, _ = cli("seal", "--key", key, "--publish", str(kept))
    assert code == 0
    assert out.startswith("sealed 1 to 3: ")
    assert cli("seal", "--key", key)[1] == "no events were added since the newest seal\n"
    cli.enqueue(2)
    code, out, _ = cli("seal", "--key", key, "--publish", str(kept), "--json")
    assert json.loads(out)["seal"]["from_sequence"] == 4
    code, out, _ = cli("seals", "--seal-key", f"{key}.pub")
    assert code == 0
    assert out.count(" good ") == 2
    code, out, _ = cli("seals", "--json")
    assert out == kept.read_text()
    assert [each.seal.to_sequence for each in read_published(kept)] == [3, 6]


def test_a_key_that_cannot_sign_is_refused_before_anything_else(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("seal", "--key", str(tmp_path / "none.pem"))
    assert (code, "cannot be read" in err) == (2, True)
    code, _, err = cli("keygen", str(tmp_path / "missing" / "key.pem"))
    assert (code, "there is no folder" in err) == (2, True)
    assert cli("seals")[1].startswith("no seals")


def test_sealing_goes_on_until_it_is_told_to_stop(
    nats_server: EmbeddedServer, cli: Cli, tmp_path: Path, command: Callable[..., Any]
) -> None:
    key = tmp_path / "seal.pem"
    make_keys(key)
    process = command("audit", "seal", "--follow", "--interval", "1", "--key", str(key), "--json", *cli.where)
    assert process.line()["seal"]["to_sequence"] == 3
    cli.enqueue(1)
    assert process.line()["seal"]["from_sequence"] == 4
    assert process.end(signal.SIGTERM) == 0


def test_a_tail_that_was_cut_off_is_found_by_a_seal_kept_elsewhere(
    cli: Cli, tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    key, kept = str(tmp_path / "seal.pem"), tmp_path / "seals.jsonl"
    cli("keygen", key)
    cli("seal", "--key", key, "--publish", str(kept))
    cli.enqueue(4)
    cli("seal", "--key", key, "--publish", str(kept))
    trusting = ["--seal-key", f"{key}.pub"]
    code, out, _ = cli("verify", *trusting, "--seal", str(kept))
    assert code == 0
    assert out.count("2 of 2 agree with the events, up to stream sequence 8") == 2
    code, out, _ = cli("verify", "--seal", str(kept), "--since-seal")
    assert code == 0
    assert "stream sequence 4 to 9" in out
    assert "no signature was checked" in " ".join(out.split())

    # A ledger that had the same beginning, and lost what came after its third event.
    cut_off = Cli(nats_server, f"t_{secrets.token_hex(6)}", cli.capsys)
    cut_off.enqueue(3)
    seals = [msgspec.structs.replace(each, environment=cut_off.environment) for each in read_published(kept)]
    moved = tmp_path / "moved.jsonl"
    moved.write_text("".join(f"{each.line()}\n" for each in seals[1:]))
    code, _, err = cut_off("verify", "--seal", str(moved))
    assert code == 4
    assert "rule `seal` is broken at stream sequence 4: the ledger ends at 3" in err
    code, _, err = cut_off("verify", "--seal", str(moved), "--since-seal")
    assert (code, "rule `se" in err) == (4, True)


def test_a_seal_that_was_not_published_is_published_by_the_next_run(cli: Cli, tmp_path: Path) -> None:
    key, kept = str(tmp_path / "seal.pem"), tmp_path / "seals.jsonl"
    cli("keygen", key)
    for _ in range(2):  # the machine fell after sealing, and on the way of writing
        cli("seal", "--key", key, "--publish", str(kept))
        cli.enqueue(2)
    first, second = kept.read_text().splitlines(keepends=True)
    kept.write_text(first + second[:80])
    assert cli("seal", "--key", key, "--publish", str(kept))[0] == 0
    assert [each.seal.to_sequence for each in read_published(kept)] == [3, 6, 9]
    # A check that ends early leaves out what was sealed after that, and cries no wolf.
    code, out, err = cli("verify", "--seal", str(kept), "--to", "7")
    assert code == 0, err
    assert "published seals: 2 of 2 agree" in out
    code, _, err = cli("verify", "--seal", str(kept), "--since-seal", "--to", "2")
    assert (code, "where the newest seal begins" in err) == (2, True)
    code, _, err = cli("seal", "--key", key, "--publish", str(tmp_path))
    assert (code, "it is a folder" in err) == (2, True)


def test_a_seal_by_another_key_is_a_violation(cli: Cli, tmp_path: Path) -> None:
    key, other = str(tmp_path / "seal.pem"), str(tmp_path / "other.pem")
    cli("keygen", key)
    cli("keygen", other)
    cli("seal", "--key", key)
    assert cli("verify", "--seal-key", f"{key}.pub")[0] == 0
    code, _, err = cli("verify", "--seal-key", f"{other}.pub")
    assert code == 4
    assert "which is not among the trusted ones" in err
    assert cli("seals", "--seal-key", f"{other}.pub")[1].count("unknown key") == 1


def test_what_is_asked_of_seals_must_make_sense(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("verify", "--since-seal")
    assert (code, "the ledger has no seal" in err) == (2, True)
    code, _, err = cli("verify", "--since-seal", "--from", "2")
    assert (code, "leave out --from" in err) == (2, True)
    (tmp_path / "none").write_text("{}")
    code, _, err = cli("verify", "--seal", str(tmp_path / "none"))
    assert (code, "line 1 of" in err) == (2, True)
    code, _, err = cli("verify", "--seal-key", str(tmp_path / "none"))
    assert (code, "holds no public key" in err) == (2, True)


def test_what_was_sealed_and_archived_is_compared_with_the_archive(cli: Cli, tmp_path: Path) -> None:
    key, archive = str(tmp_path / "seal.pem"), str(tmp_path / "archive")
    cli("keygen", key)
    cli("seal", "--key", key)
    cli.enqueue(2)
    now = datetime.now(UTC).isoformat()
    code, _, err = cli("archive", "--before", now, "--to", archive)
    assert code == 0, err
    code, out, _ = cli("verify", "--seal-key", f"{key}.pub")
    assert code == 0
    assert "seals: 0 of 0 agree with the events; 1 begin before what was read\n" in out
    code, out, err = cli("verify", "--seal-key", f"{key}.pub", "--since-seal")
    assert code == 0, err
    assert "stream sequence 4 to " in out
    code, out, err = cli("verify", "--seal-key", f"{key}.pub", "--since-seal", "--archive", archive)
    assert code == 0, err
    assert "seals: 1 of 1 agree with the events, up to stream sequence 3\n" in out
    code, out, _ = cli("verify", "--seal-key", f"{key}.pub", "--archive", archive)
    assert code == 0
    assert "seals: 1 of 1 agree with the events, up to stream sequence 3\n" in out


def test_several_environments_publish_to_one_file_and_each_is_held_to_its_own(
    nats_server: EmbeddedServer, cli: Cli, tmp_path: Path
) -> None:
    key, kept = str(tmp_path / "seal.pem"), tmp_path / "seals.jsonl"
    cli("keygen", key)
    other, third = (Cli(nats_server, f"t_{secrets.token_hex(6)}", cli.capsys) for _ in range(2))
    other.enqueue(9)
    third.enqueue(1)
    assert cli("seal", "--key", key)[0] == 0  # not published yet, and at a lower sequence than the other's
    for each in (other, cli):
        each.enqueue(1)
        assert each("seal", "--key", key, "--publish", str(kept))[0] == 0
    found = [(each.environment, each.seal.to_sequence) for each in read_published(kept)]
    assert sorted(found) == sorted([(other.environment, 10), (cli.environment, 3), (cli.environment, 5)])
    for each, count in ((other, 1), (cli, 2)):
        for words in ((), ("--since-seal",)):
            code, out, err = each("verify", "--seal-key", f"{key}.pub", "--seal", str(kept), *words)
            assert code == 0, err
            assert words or f"published seals: {count} of {count} agree" in out
    code, _, err = third("verify", "--seal", str(kept))
    assert (code, f"and this ledger is {third.environment!r}" in err) == (2, True)


def test_a_key_is_changed_as_the_docs_say(cli: Cli, tmp_path: Path) -> None:
    """What the old key signed stays good by its public half; only what it signs later is not by the new one."""
    old, new, kept = str(tmp_path / "old.pem"), str(tmp_path / "new.pem"), str(tmp_path / "seals.jsonl")
    cli("keygen", old)
    cli("seal", "--key", old, "--publish", kept)
    cli.enqueue(2)
    cli("seal", "--key", old, "--publish", kept)  # once more, so that nothing unpublished is left behind
    Path(old).unlink()
    cli("keygen", new)
    cli.enqueue(2)
    assert cli("seal", "--key", new, "--publish", kept)[0] == 0
    both = ("--seal-key", f"{old}.pub", "--seal-key", f"{new}.pub", "--seal", kept)
    code, out, err = cli("verify", *both)
    assert code == 0, err
    assert out.count("3 of 3 agree with the events") == 2
    code, _, err = cli("verify", "--seal-key", f"{new}.pub")
    assert (code, "which is not among the trusted ones (and 1 more)" in err) == (4, True)
    Path(new).chmod(0o644)
    code, _, err = cli("seal", "--key", new)
    assert (code, f"can be read by others: run `chmod 600 {new}`" in err) == (2, True)


def test_a_sealer_that_is_killed_again_and_again_publishes_every_seal_once(
    nats_server: EmbeddedServer, cli: Cli, tmp_path: Path, command: Callable[..., Any]
) -> None:
    key, kept = str(tmp_path / "seal.pem"), tmp_path / "seals.jsonl"
    make_keys(Path(key))
    words = (
        "audit",
        "seal",
        "--follow",
        "--every",
        "1",
        "--interval",
        "1",
        "--key",
        key,
        "--publish",
        str(kept),
    )
    for _ in range(3):
        process = command(*words, "--json", *cli.where)
        cli.enqueue(1)  # the one before may have had time to seal all there was
        process.line()
        cli.enqueue(3)
        process.child.kill()
        process.child.wait(LIMIT_S)
    assert cli("seal", "--key", key, "--publish", str(kept))[0] == 0
    published = read_published(kept)
    assert "".join(f"{each.line()}\n" for each in published) == cli("seals", "--json")[1]
    ends = [(each.seal.from_sequence, each.seal.to_sequence) for each in published]
    assert (ends[0][0], ends[-1][1]) == (1, published[-1].stream_sequence - 1)
    code, out, err = cli("verify", "--seal-key", f"{key}.pub", "--seal", str(kept))
    assert code == 0, err
    assert out.count(f"{len(ends)} of {len(ends)} agree with the events") == 2
