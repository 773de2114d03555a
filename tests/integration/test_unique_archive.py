"""An archive run across unique keys: those that are held are said again, those that are free go away."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.working import Connect, ended, working

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.verify import verify
from jobledger.ledger import Context, JobHandle, Ledger, Unique, task
from jobledger.ledger.model.unique import UNIQUE
from jobledger.ledger.unique.queries import find_keys

pytestmark = pytest.mark.anyio


@task(queue="work", unique=Unique(args=("name",)))
async def only(context: Context, name: str) -> str:
    return name


SLIDING = only.options(unique=Unique(args=("name",), for_s=3600, sliding=True))
DEBOUNCED = only.options(unique=Unique(args=("name",)), debounce_s=3600)


class CrashError(Exception):
    """The process ends between the two appends."""


async def crash(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Let an enqueue end after it took the key; return the id of the job that it named."""

    async def dies(*_: object) -> tuple[int, bool]:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(ledger._enqueuer._unique, "_begin", dies)
        with pytest.raises(CrashError):
            await ledger.enqueue(only, name)
    return (await find_keys(ledger.log, "only", now=ledger.clock.now(), limit=1))[0].taken.job


async def archive(ledger: Ledger, folder: Path) -> int:
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    done = await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))
    assert done.held_back_by == ""
    return done.first_sequence


async def test_keys_that_are_held_outlive_their_events(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as ledger:
        over: list[JobHandle[Any]] = [
            await ledger.enqueue(each, name) for each, name in ((only, "over"), (SLIDING, "slides"))
        ]
        async with working(ledger, only):
            for handle in over:
                await ended(handle)
        waits = await ledger.enqueue(only.options(delay_s=3600), "waits")
        calm = await ledger.enqueue(DEBOUNCED, "calm")
        never_made = await crash(ledger, monkeypatch, "crashed")
        for _ in range(2):  # the second run moves what the first one said again
            head = (await ledger.log.head()).last_sequence
            assert await archive(ledger, tmp_path) == head + 1
        names = {
            bytes(each.taken.arguments): each.taken.made
            for each in await find_keys(ledger.log, "only", now=ledger.clock.now(), limit=10)
        }
        assert names == {
            b'{"name":"slides"}': True,
            b'{"name":"waits"}': True,
            b'{"name":"calm"}': True,
            b'{"name":"crashed"}': False,
        }
        again = await ledger.enqueue(only, "waits")
        assert (again.ref, again.created) == (waits.ref, False)
        again = await ledger.enqueue(SLIDING, "slides")
        assert (again.ref, again.created) == (over[1].ref, False)
        assert (await ledger.enqueue(DEBOUNCED, "calm")).ref == calm.ref
        healed = await ledger.enqueue(only, "crashed")
        assert (healed.id, healed.created) == (never_made, True)
        anew = await ledger.enqueue(only, "over")
        assert anew.created
        assert anew.id != over[0].id
        newest = await ledger.log.last(
            UNIQUE.chain(ledger.names, "only", (await anew.snapshot()).order.unique)
        )
        assert newest is not None
        assert UNIQUE.decode(newest).number == 1  # as the chain's first event
        for log in (ledger.log, await open_archive(ledger.log, tmp_path)):
            report = await verify(log)
            assert report.sound, report.text()
