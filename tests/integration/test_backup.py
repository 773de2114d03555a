"""Back-ups while work goes on, and what a new server makes of them: nothing acknowledged is missing, all work ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
import pytest
from tests.conftest import ServerFactory
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, ended, until, working

from jobledger.admin.backup import back_up, read_backup
from jobledger.admin.restore import Restore, restore
from jobledger.audit.seals.keys import make_keys, read_signer
from jobledger.audit.seals.seals import seal_next
from jobledger.audit.verify import verify
from jobledger.cli.main import run
from jobledger.ledger import JobState, Ledger, connect, task
from jobledger.ledger.connection import connect_without_streams
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.errors import StreamMismatchError
from jobledger.ledger.model.reactor import Restored
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, rebuild
from jobledger.projections.errors import PositionMismatchError

pytestmark = pytest.mark.anyio

_ROOM = 64 << 20
_OF_CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from jobledger.admin.backup import back_up, read_backup
from jobledger.admin.restore import restore
from jobledger.ledger import connect
from jobledger.ledger.connection import connect_without_streams
from jobledger.ledger.nats.fleet_clock import FleetClock

calls = 0
def on_progress(done, total):
    global calls
    calls += 1
    if calls == 5:  # the ledger is written, and stores are not
        os.kill(os.getpid(), signal.SIGKILL)

async def main(what, url, folder):
    if what == "backup":
        async with connect(url, create=False) as ledger:
            await back_up(ledger, folder, on_progress=on_progress)
    else:
        async with connect_without_streams(url, clock=FleetClock()) as ledger:
            await restore(ledger, folder, read_backup(folder), by="ann", on_progress=on_progress)

asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
"""


@task(queue="mail", max_attempts=3)
async def send(number: int) -> int:
    return number


@task(queue="mail")
async def later(number: int) -> int:
    return number


class Answer(NamedTuple):
    code: int
    out: str
    err: str


async def _command(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    capsys.readouterr()
    code = await anyio.to_thread.run_sync(run, words)
    shown = capsys.readouterr()
    return Answer(code, shown.out, " ".join(shown.err.split()))


async def _restored(url: str, folder: Path, **how: Any) -> Restore:
    async with connect_without_streams(url, clock=FleetClock()) as ledger:
        return await restore(ledger, folder, read_backup(folder), by="ann", **how)


async def _killed(*words: str) -> None:
    """Run a back-up or a restore that is killed half-way."""
    child = await anyio.run_process([sys.executable, "-c", _OF_CHILD, *words], check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr


async def _add(ledger: Ledger, numbers: range) -> None:
    for number in numbers:
        await ledger.enqueue(send.options(id=f"job-{number}"), number=number)


async def _backed_up(url: str, folder: Path, jobs: int = 5) -> Path:
    """Make a ledger with jobs that nobody runs, and a back-up of it."""
    async with connect(url, ledger_bytes_max=_ROOM) as ledger:
        await _add(ledger, range(jobs))
        return Path((await back_up(ledger, folder)).folder)


async def _killed_under_load(old: EmbeddedServer, folder: Path) -> tuple[Path, int]:
    """Back up a server while jobs come in and run, then kill it; return how many jobs were acknowledged before."""
    acknowledged = 0
    async with connect(old.url, ledger_bytes_max=_ROOM) as ledger:
        await ledger.enqueue(later.options(delay_s=3, id="late"), number=1)
        is_over = asyncio.Event()

        async def feed() -> None:
            nonlocal acknowledged
            while not is_over.is_set():
                await _add(ledger, range(acknowledged, acknowledged + 1))
                acknowledged += 1

        async with working(ledger, send, later, concurrency=20):
            feeding = asyncio.create_task(feed())
            await until(lambda: acknowledged >= 150)
            before = acknowledged
            taken = await back_up(ledger, folder)
            assert acknowledged > before, "appends went on meanwhile"
            is_over.set()
            await feeding
        assert old.pid is not None
        os.kill(old.pid, signal.SIGKILL)
    found = [each.stream for each in taken.backup.streams]
    assert found[0] == "LEDGER"
    assert "KV_WORKERS" not in found
    return Path(taken.folder), before


async def test_a_backup_under_load_loses_nothing_acknowledged_and_all_its_jobs_end(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    old, new = server_factory(), server_factory()
    await old.start()
    folder, before = await _killed_under_load(old, tmp_path / "backups")
    await new.start()
    done = await _restored(new.url, folder)
    assert done.through >= read_backup(folder).through
    async with connect(new.url) as ledger:
        assert (await verify(ledger.log)).sound
        found = {f"job-{number}" for number in range(before)}
        async for batch in ledger.log.read():
            found -= {each.event.job for each in batch}
        assert not found
        async with working(ledger, send, later, concurrency=20):
            async with asyncio.timeout(2.0):
                first = await ledger.enqueue(send.options(id="new"), number=-1)
                await first.result(timeout_s=2.0)
            async with asyncio.timeout(LIMIT_S):
                while (report := await verify(ledger.log)).states.keys() != {"completed"}:
                    await asyncio.sleep(0.2)
        assert report.sound
        assert report.types["completed"] == report.jobs, "none ended twice"
        assert (await ended(await ledger.job("late"))).state is JobState.COMPLETED


async def _two_servers(
    server_factory: ServerFactory, folder: Path
) -> tuple[EmbeddedServer, EmbeddedServer, Path]:
    """Start a server, back it up, and start an empty one; return both, and the back-up."""
    old, new = server_factory(), server_factory()
    await old.start()
    await new.start()
    return old, new, await _backed_up(old.url, folder / "backups")


async def test_what_cannot_be_restored_is_refused_and_nothing_is_changed(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, place = await _two_servers(server_factory, tmp_path)
    where = ("--url", new.url)

    full = await _command(capsys, "restore", str(place), "--url", old.url)
    assert (full.code, "the server has LEDGER, " in full.err) == (4, True)
    (tmp_path / "empty").mkdir()
    empty = await _command(capsys, "restore", str(tmp_path / "empty"), *where)
    assert (empty.code, "it has no backup.json" in empty.err) == (4, True)
    missing = await _command(capsys, "restore", str(tmp_path / "nowhere"), *where)
    assert (missing.code, "there is no folder" in missing.err) == (3, True)
    other = await _command(capsys, "restore", str(place), *where, "--environment", "staging")
    assert (other.code, "give no --environment" in other.err) == (4, True)

    plan = await _command(capsys, "restore", str(place), "--plan", "--json", *where)
    assert (plan.code, json.loads(plan.out)["through"]) == (0, 5)

    description = place / "backup.json"
    text = description.read_text()
    description.write_text(text.replace('"form": 1', '"form": 2'))
    newer = await _command(capsys, "restore", str(place), *where)
    assert (newer.code, "restore it with a newer jobledger" in newer.err) == (4, True)
    description.write_text(text)
    with (place / "LEDGER.snapshot").open("rb+") as file:
        file.seek(30)
        file.write(b"damage")
    damaged = await _command(capsys, "restore", str(place), *where)
    assert (damaged.code, "LEDGER.snapshot is damaged" in damaged.err) == (1, True)
    async with connect_without_streams(new.url, clock=FleetClock()) as ledger:
        assert (await api(ledger.inbox, "STREAM.NAMES", {}))["total"] == 0


async def test_a_killed_backup_is_told_and_removed_and_the_oldest_go(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, folder = server_factory(), tmp_path / "backups"
    await server.start()
    first = await _backed_up(server.url, folder)
    await _killed("backup", server.url, str(folder))
    unfinished = next(each for each in folder.iterdir() if each.name != first.name and each.is_dir())
    assert (unfinished / "LEDGER.snapshot").exists()
    refused = await _command(capsys, "restore", str(unfinished), "--url", server.url)
    assert (refused.code, "was not finished" in refused.err) == (4, True)
    said = await _command(capsys, "backup", str(folder), "--keep", "1", "--verify", "--url", server.url)
    assert (said.code, "it is sound" in said.out) == (0, True)
    assert f"{unfinished} was not finished and is removed" in said.err
    left = [each.name for each in folder.iterdir() if each.is_dir()]
    assert len(left) == 1
    assert first.name not in left
    assert left[0] in said.out


async def test_verify_tells_of_a_ledger_that_is_not_sound(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=_ROOM) as ledger:
        await _add(ledger, range(1))
        await ledger.connection.request("ledger.job.mail.x.started", b"no event")
    said = await _command(capsys, "backup", str(tmp_path / "b"), "--verify", "--url", server.url)
    assert (said.code, "NOT sound" in said.out, "is not sound: " in said.err) == (4, True, True)


async def test_a_killed_restore_lets_nobody_in_and_is_done_again(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, new, place = await _two_servers(server_factory, tmp_path)
    await _killed("restore", new.url, str(place))
    with pytest.raises(StreamMismatchError, match="subjects"):
        async with connect(new.url):
            pass
    refused = await _command(capsys, "restore", str(place), "--url", new.url)
    assert (refused.code, "`jobledger restore DIR --again`" in refused.err) == (4, True)
    again = await _command(capsys, "restore", str(place), "--again", "--url", new.url)
    assert (again.code, "5 were waiting" in again.out) == (0, True)
    async with connect(new.url) as ledger:
        assert (await verify(ledger.log)).sound


async def test_a_paused_restore_begins_no_job_until_its_queue_is_resumed(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    old, new = server_factory(), server_factory()
    await old.start()
    await new.start()
    async with connect(old.url, ledger_bytes_max=_ROOM) as ledger, working(ledger, send):
        await ended(
            await ledger.enqueue(send.options(id="over"), number=1)
        )  # so that the queue has consumers
    place = await _backed_up(old.url, tmp_path / "backups")
    done = await _restored(new.url, place, paused=True, lost_through=99)
    assert (done.running, done.waiting, done.paused) == (0, 5, ("mail",))
    async with connect(new.url) as ledger:
        message = await ledger.log.get(done.sequence or 0)
        assert message is not None
        event = AGGREGATES["reactor"].decode(message)
        assert isinstance(event, Restored)
        assert (event.by, event.open_jobs, event.lost_through) == ("ann", 5, 99)
        assert event.head_hash == read_backup(place).head_hash
        for priority in ("high", "normal", "low"):
            info = await api(ledger.inbox, f"CONSUMER.INFO.LEDGER.work_mail_{priority}", {})
            assert info["paused"]
        async with working(ledger, send):
            await ledger.resume_queue("mail")
            for number in range(5):
                job = await ended(await ledger.job(f"job-{number}"))
                assert job.state is JobState.COMPLETED
        assert (await verify(ledger.log)).sound


async def test_what_was_cut_off_is_noticed_by_projections_and_explained_for_seals(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, place = await _two_servers(server_factory, tmp_path)
    make_keys(tmp_path / "key")
    projection, seals = tmp_path / "p.db", tmp_path / "seals"
    async with connect(old.url) as ledger:
        await _add(ledger, range(100, 105))
        seal = await seal_next(ledger.log, read_signer(tmp_path / "key"), by="ann", at=ledger.clock.now())
        assert seal is not None
        seals.write_text(f"{seal.line()}\n")
        await rebuild(ledger.log, projection)
    await old.stop()
    words = (
        "audit",
        "verify",
        "--seal",
        str(seals),
        "--url",
        new.url,
        "--projection",
        str(tmp_path / "n.db"),
    )
    await _restored(new.url, place)
    async with connect(new.url) as ledger:
        await _add(ledger, range(200, 210))
        with pytest.raises(PositionMismatchError), Projector(ledger.log, projection) as projector:
            await projector.catch_up()
    told = await _command(capsys, *words)
    shown = " ".join(told.out.split())
    assert (told.code, "1 goes beyond stream sequence 5 and was cut off by the restore of" in shown) == (
        0,
        True,
    )
    assert "by ann, as recorded at 6" in shown
