"""Rows 12, 13 and 14 of the scoreboard: a store is damaged, shortened, put back or lost, and nobody is told a lie.

The stores are those of a real nats-server, in several blocks; each trial damages a copy, starts a server on it and
asks `audit verify`, with and without an earlier report, and a projector that had read everything before.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.support.counting import RUNS, count
from tests.support.figures import Recorder
from tests.support.stores import (
    End,
    Found,
    Made,
    copied,
    history,
    ledger_folder,
    look_into,
    make_store,
    older_folder,
)
from tests.support.watch import make_consumers
from tests.support.working import working

from jobledger.audit.verify import Report, leftovers, verify
from jobledger.ledger import connect
from jobledger.ledger.model.errors import SequenceGapError, ServerStartError, ServerUnreachableError
from jobledger.projections import PositionMismatchError, Projector

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

JOBS = 150
OLDER = 200  #: events in the older copy of a store


@pytest.fixture
async def stores(server_factory: ServerFactory, tmp_path: Path) -> dict[End, Made]:
    """One store whose server was stopped, one whose server was killed, of the same ledger."""
    story = history(random.Random(12), JOBS)
    made: dict[End, Made] = {
        "SIGTERM": await make_store(server_factory, tmp_path / "stopped", story, "SIGTERM", stop_at=OLDER),
        "SIGKILL": await make_store(server_factory, tmp_path / "killed", story, "SIGKILL"),
    }
    for store in made.values():
        assert len(store.blocks(store.folder)) > 5
    return made


def first_of(report: Report) -> int:
    """Return the first sequence that is lost or changed; a timer may be overdue only because its end is gone."""
    return min(each.stream_sequence for each in report.violations if each.rule != "timer")


def named(made: Made, found: Found) -> set[int]:
    """Return the sequences that tell of the first wrong one: its own, or where an event can still be read, its follower's.

    The server may serve the last record of a block although a bit of it differs, and that bit may change a value alone:
    then the next event of the chain says that the one before it was another.
    """
    first = found.wrong[0]
    if first in found.gone:
        return {first}
    chain = made.messages[first - 1][0].split(".")[:4]
    later = (
        at
        for at, (subject, _) in enumerate(made.messages[first:], start=first + 1)
        if subject.split(".")[:4] == chain
    )
    return {first, next(later, first)}


def judge(made: Made, found: Found) -> str:
    """Hold a damaged ledger to what is promised; return in a word how it was noticed."""
    events = len(made.messages)
    if found.is_whole:
        assert found.against.sound
        assert found.alone.digest == made.report.digest
        assert (found.projector, found.projector_later, found.rebuilt) == ("", "", "")
        assert found.rows_kept
        return "recovered"
    assert not found.against.sound, "whatever is lost or changed, the earlier report tells"
    assert first_of(found.against) in named(made, found), (
        "and the first sequence that is lost or changed is named"
    )
    assert found.rows_kept, "no row of before is overwritten"
    if not found.lost_only_its_end:
        assert not found.alone.sound
        assert first_of(found.alone) in named(made, found)
        # The server may serve the last record of a block although a bit of it differs: then there is no hole.
        assert found.rebuilt or not found.gone, "nobody makes tables out of a ledger with a hole"
        return "verify"
    assert set(found.alone.broken) <= {"timer"}, "a shorter ledger is one in itself"
    assert found.head < events
    assert found.projector, "it has read further than the ledger goes"
    assert found.projector_later, "and is not taken in by other events under the same sequences"
    return "earlier report, projection"


async def damaged(
    servers: ServerFactory,
    folder: Path,
    made: Made,
    damage: Callable[[Path], object],
    source: Path | None = None,
) -> str:
    """Run one trial; a server that does not start, or gives no answer, tells no lie either."""
    try:
        async with copied(servers, made, folder, damage, source) as ledger:
            return judge(made, await look_into(ledger, made, folder))
    except (ServerStartError, ServerUnreachableError) as error:
        return f"the server: {type(error).__name__}"


def one_bit(made: Made, chance: random.Random) -> Callable[[Path], None]:
    """Flip one bit somewhere in the ledger's blocks."""

    def flip(folder: Path) -> None:
        blocks = made.blocks(folder)
        at = chance.randrange(sum(block.stat().st_size for block in blocks))
        for block in blocks:
            size = block.stat().st_size
            if at < size:
                data = bytearray(block.read_bytes())
                data[at] ^= 1 << chance.randrange(8)
                block.write_bytes(data)
                return
            at -= size

    return flip


async def flips(
    servers: ServerFactory, folder: Path, stores: dict[End, Made], chance: random.Random, each: int
) -> Counter[str]:
    ways: Counter[str] = Counter()
    for end, made in stores.items():
        for number in range(each):
            way = await damaged(servers, folder / f"flip-{number}", made, one_bit(made, chance))
            assert way != "recovered", "a record with a flipped bit is never served"
            ways[f"{way} after {end}"] += 1
    return ways


def _of_block(made: Made, which: int, damage: Callable[[Path], None], folder: Path) -> None:
    damage(made.blocks(folder)[which])


def _of_stream(name: str, damage: Callable[[Path], None], folder: Path) -> None:
    damage(ledger_folder(folder) / name)


def _nothing(_: Path) -> None:
    """What is put back is damage enough."""


def _empty(folder: Path) -> None:
    for path in ledger_folder(folder).glob("msgs/*"):
        path.unlink()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _cut(path: Path, part: float = 0.4) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


# In every run of the tests: a few of each.


@pytest.mark.unsound_ledger("stores are damaged")
async def test_a_damaged_store_is_found_out(
    server_factory: ServerFactory, tmp_path: Path, stores: dict[End, Made]
) -> None:
    assert (await flips(server_factory, tmp_path, stores, random.Random(1), 3)).total() == 6
    stopped = stores["SIGTERM"]
    lost = await damaged(server_factory, tmp_path / "lost", stopped, partial(_of_block, stopped, 0, _remove))
    assert lost == "verify"
    older = older_folder(stopped.folder)
    rewound = await damaged(server_factory, tmp_path / "older", stopped, _nothing, older)
    assert rewound == "earlier report, projection"
    unnamed = await damaged(
        server_factory, tmp_path / "meta", stopped, partial(_of_stream, "meta.inf", _remove)
    )
    assert unnamed == "recovered"


# With `make faults`: many.


@pytest.mark.unsound_ledger("stores are damaged")
@pytest.mark.fault
async def test_a_hundred_flipped_bits_are_found_wherever_they_are(
    server_factory: ServerFactory,
    tmp_path: Path,
    stores: dict[End, Made],
    chance: random.Random,
    record: Recorder,
) -> None:
    """Row 12."""
    ways = await flips(server_factory, tmp_path, stores, chance, 50)
    assert ways.total() == 100
    told = ", ".join(f"{number} by {way}" for way, number in sorted(ways.items()))
    record(
        "12",
        "one bit flipped in a block of the ledger's store at rest",
        faults=f"100 flips, all found with the first sequence named: {told}",
        jobs=JOBS,
        events=len(stores["SIGTERM"].messages),
        now=time.monotonic(),
    )


@pytest.mark.unsound_ledger("stores are damaged")
@pytest.mark.fault
async def test_lost_and_shortened_files_are_found_or_made_good(
    server_factory: ServerFactory,
    tmp_path: Path,
    stores: dict[End, Made],
    chance: random.Random,
    record: Recorder,
) -> None:
    """Row 13: blocks are lost or cut somewhere; then what only says where things are, or what the stream is."""
    ways: Counter[str] = Counter()
    for made in stores.values():
        blocks = len(made.blocks(made.folder))
        for which in (0, blocks // 2, blocks - 1):
            parts: list[Callable[[Path], None]] = [
                _remove,
                *(partial(_cut, part=chance.random()) for _ in range(3)),
            ]
            for damage in parts:
                way = await damaged(
                    server_factory, tmp_path / "lost", made, partial(_of_block, made, which, damage)
                )
                assert way != "recovered"
                ways[way] += 1
        for name in ("msgs/index.db", "meta.inf", "meta.sum"):
            for damage in (_remove, _flip):
                if (ledger_folder(made.folder) / name).exists():  # a killed server left no index
                    way = await damaged(
                        server_factory, tmp_path / "lost", made, partial(_of_stream, name, damage)
                    )
                    assert way == "recovered"
                    ways[way] += 1
    told = ", ".join(f"{number} {way}" for way, number in sorted(ways.items()))
    record(
        "13",
        "blocks of the store deleted or cut; index.db, meta.inf and meta.sum deleted or damaged",
        faults=f"{ways.total()} trials: {told}",
        jobs=JOBS,
        events=len(stores["SIGTERM"].messages),
        now=time.monotonic(),
    )


@pytest.mark.fault
async def test_lost_states_of_consumers_make_no_job_run_again(
    server_factory: ServerFactory, tmp_path: Path, record: Recorder
) -> None:
    """Row 13, o.dat: the server forgets what was acknowledged, delivers it all again, and the ledger refuses."""
    server = server_factory(tmp_path / "store")
    await server.start()
    RUNS.clear()
    async with connect(server.url, ledger_bytes_max=64 << 20) as ledger:
        await make_consumers(ledger, count.defaults.queue, ack_wait_s=30.0, in_memory=False)
        async with working(ledger, count):
            jobs = [await ledger.enqueue(count, number) for number in range(100)]
            assert [await job.result(timeout_s=20) for job in jobs] == list(range(100))
            assert await leftovers(ledger.inbox, ledger.names, within_s=10) == []
        before = await verify(ledger.log)
    await server.stop()
    states = list((ledger_folder(server.directory) / "obs").glob("work_*/o.dat"))
    assert states
    for path in states:
        path.unlink()
    await server.start()
    async with connect(server.url, ledger_bytes_max=64 << 20) as ledger:
        held = await leftovers(ledger.inbox, ledger.names)
        async with working(ledger, count):
            assert await leftovers(ledger.inbox, ledger.names, within_s=20) == []
        after = await verify(ledger.log, before=before)
    assert sum(each.pending + each.ack_pending for each in held) == 100, "all of them came again"
    assert (sum(RUNS.values()), set(RUNS.values())) == (100, {1})
    assert (after.sound, after.digest) == (True, before.digest)
    record(
        "13b",
        "the state of every work consumer (o.dat) deleted",
        faults="100 finished jobs delivered again, 0 ran again",
        jobs=100,
        events=after.events,
        now=time.monotonic(),
    )


@pytest.mark.unsound_ledger("the ledger is put back to another past")
@pytest.mark.fault
@pytest.mark.parametrize("put_back", ["an older copy", "an empty stream"])
async def test_a_ledger_that_was_put_back_stops_a_projector_that_follows(
    server_factory: ServerFactory,
    tmp_path: Path,
    stores: dict[End, Made],
    put_back: str,
    record: Recorder,
) -> None:
    """Row 14: the server comes back at the same address with another past, and grows beyond the old head."""
    made = stores["SIGTERM"]
    source = older_folder(made.folder) if put_back == "an older copy" else made.folder
    way = await damaged(
        server_factory, tmp_path / "still", made, _nothing if source != made.folder else _empty, source
    )
    assert way == "earlier report, projection"
    server = server_factory(made.folder)
    await server.start()
    path = tmp_path / "followed.db"
    shutil.copy(made.projection, path)
    async with connect(server.url, ledger_bytes_max=64 << 20) as ledger:
        with Projector(ledger.log, path) as projector:
            following = asyncio.create_task(projector.run())
            await ledger.enqueue(count.options(id="seen"), 1)
            await projector.wait_for(len(made.messages) + 1)
            await server.stop()
            if put_back == "an older copy":
                shutil.rmtree(made.folder / "jetstream")
                shutil.copytree(source / "jetstream", made.folder / "jetstream")
            else:
                _empty(made.folder)
            await server.start()
            began = time.monotonic()
            with pytest.raises((PositionMismatchError, SequenceGapError)):
                async with asyncio.timeout(5):
                    await following
            took_s = time.monotonic() - began
    record(
        "14",
        f"{put_back} in the place of the store while a projector follows",
        faults="1, and once at rest; no row was overwritten",
        jobs=JOBS,
        events=len(made.messages),
        worst_recovery=f"{took_s:.1f} s until the projector stopped",
        now=time.monotonic(),
    )
