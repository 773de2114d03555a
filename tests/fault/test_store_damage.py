"""Rows 12, 13 and 14 of the scoreboard: a store is damaged, shortened, put back or lost, and nobody is told a lie.

The stores are those of a real nats-server, in several blocks; each trial damages a copy, starts a server on it and
asks `audit verify`, with and without an earlier report, and a projector that had read everything before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
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

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

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
    first = min(each.stream_sequence for each in found.against.violations)
    assert first == found.wrong[0], "and the first sequence that is lost or changed is named"
    assert found.rows_kept, "no row of before is overwritten"
    if not found.lost_only_its_end:
        assert not found.alone.sound
        assert min(each.stream_sequence for each in found.alone.violations) == found.wrong[0]
        assert found.rebuilt, "nobody makes tables out of a ledger with a hole"
        return "verify"
    assert found.alone.sound, "a shorter ledger is one in itself"
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
    """Run one trial."""
    async with copied(servers, made, folder, damage, source) as ledger:
        return judge(made, await look_into(ledger, made, folder))


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


# In every run of the tests: a few of each.


async def test_a_flipped_bit_in_a_store_is_found_wherever_it_is(
    server_factory: ServerFactory, tmp_path: Path, stores: dict[End, Made]
) -> None:
    ways = await flips(server_factory, tmp_path, stores, random.Random(1), 5)
    assert ways.total() == 10
    await _lost_parts(server_factory, tmp_path, stores)
    await _put_back(server_factory, tmp_path, stores["SIGTERM"])


async def _lost_parts(servers: ServerFactory, folder: Path, stores: dict[End, Made]) -> None:
    """The first, one in the middle and the last block are lost or cut; then what only says where things are."""
    for made in stores.values():
        for which in (0, 3, -1):
            for damage in (_remove, _cut):
                way = await damaged(servers, folder / "lost", made, partial(_of_block, made, which, damage))
                assert way != "recovered"
        for name in ("msgs/index.db", "meta.sum"):
            way = await damaged(servers, folder / "unindexed", made, partial(_of_stream, name, _remove))
            assert way == "recovered"


def _of_block(made: Made, which: int, damage: Callable[[Path], None], folder: Path) -> None:
    damage(made.blocks(folder)[which])


def _of_stream(name: str, damage: Callable[[Path], None], folder: Path) -> None:
    damage(ledger_folder(folder) / name)


async def _put_back(servers: ServerFactory, folder: Path, made: Made) -> None:
    """Row 14: an older copy of the store, an empty stream in its place."""
    older = older_folder(made.folder)
    assert await damaged(servers, folder / "older", made, _nothing, older) == "earlier report, projection"
    for block in ("*.blk", "*.db"):
        assert list(ledger_folder(made.folder).glob(f"msgs/{block}"))
    emptied = await damaged(servers, folder / "emptied", made, _empty)
    assert emptied == "earlier report, projection"


def _nothing(_: Path) -> None:
    """Put back as it was."""


def _empty(folder: Path) -> None:
    for path in ledger_folder(folder).glob("msgs/*"):
        path.unlink()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * 0.4))
