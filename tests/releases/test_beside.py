"""`make releases`: each earlier release and today's code on one ledger, in both directions, with a death in the middle.

The old one makes the ledger, so events have its form until the upgrade is finished. Until then one may go back to it: no
job is stuck, and both find the ledger sound, with the same digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest
from tests.conftest import ServerFactory
from tests.releases.builds import TODAY, Release, build
from tests.support.watch import Watch

from jobledger.admin.upgrades import finish_upgrade, look_at_upgrade
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.forms import FORM, FORM_FIRST
from jobledger.ledger.model.subjects import TIMERS_CONSUMER_PREFIX, JobRef
from jobledger.ledger.nats import api
from jobledger.ledger.nats.durables import delete_consumer

pytestmark = [pytest.mark.anyio, pytest.mark.releases, pytest.mark.timeout(300)]

#: Kept commits of 0.1, oldest first.
COMMITS: Final = ("09bc0d5", "4b65ff47", "14053832")
#: It refuses a consumer of timers with more filters than its own, so whoever goes back to it deletes that one first. Nor
#: does it archive while the consumer of a reactor that it does not have lags behind.
EARLIEST: Final = "09bc0d5"
HERE: Final = Path(__file__).parent
LIMIT_S: Final = 60.0
_POLL_S: Final = 0.1


class Said(NamedTuple):
    """What a command of a release said."""

    code: int
    out: str
    err: str


class Beside:
    """A folder and a server that programs of two releases share."""

    def __init__(self, ledger: Ledger, watch: Watch, url: str, folder: Path) -> None:
        self.ledger = ledger
        self.watch = watch
        self.acknowledged: list[str] = []
        self._url = url
        self._folder = folder
        self._began = time.monotonic()
        for name in ("beside_app.py", "enqueue_beside.py"):
            shutil.copy(HERE / name, folder)

    def _variables(self, release: Release) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
        return kept | {
            "PYTHONPATH": str(self._folder),
            "RELEASE_NAME": release.name,
            "JOBLEDGER_URL": self._url,
            "JOBLEDGER_PROJECTION": str(self._folder / f"{release.name}.db"),
            "XDG_DATA_HOME": str(self._folder),
            "COLUMNS": "200",
        }

    async def _run(self, release: Release, *words: str) -> Said:
        with anyio.fail_after(LIMIT_S):
            done = await anyio.run_process(
                [str(release.python), *words],
                env=self._variables(release),
                cwd=self._folder,
                check=False,
            )
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def command(self, release: Release, *words: str) -> Said:
        """Run a command of a release."""
        return await self._run(release, "-P", "-m", "jobledger.cli", *words)

    async def enqueue(self, release: Release, batch: str, *what: str) -> list[str]:
        """Enqueue a batch with a release; return the ids."""
        done = await self._run(release, "enqueue_beside.py", self._url, batch, *what)
        assert done.code == 0, done.err
        self.acknowledged += done.out.split()
        return done.out.split()

    @contextlib.asynccontextmanager
    async def worker(self, release: Release) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Run a worker that takes jobs; at the end it stops in order if it still runs."""
        before = await self._living()
        log = self._folder / f"worker-{release.name}-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                str(release.python),
                *("-P", "-m", "jobledger.cli", "worker", "--app", "beside_app", "--queue", "plain"),
                env=self._variables(release),
                cwd=self._folder,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            with anyio.fail_after(LIMIT_S):
                while not await self._living() - before:
                    assert process.returncode is None, log.read_text(encoding="utf-8")
                    await anyio.sleep(_POLL_S)
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            with anyio.CancelScope(shield=True), anyio.move_on_after(LIMIT_S):
                await process.wait()

    async def left_alone(self, release: Release) -> None:
        """Do what a person does who goes back to a release, today's having ended."""
        if release.name == EARLIEST:
            stream = self.ledger.names.ledger_stream
            for name in await api.consumer_names(self.ledger.inbox, stream):
                if name.startswith(TIMERS_CONSUMER_PREFIX):
                    await delete_consumer(self.ledger.inbox, stream, name)

    def tell(self, what: str) -> None:
        """Say on the terminal how far it is."""
        sys.stderr.write(f"releases: {self._folder.name}, {time.monotonic() - self._began:.0f} s: {what}\n")

    async def _living(self) -> set[str]:
        return {info.worker for info in await self.ledger.leases.all() if not info.stopped}

    async def ended(self) -> None:
        """Wait until every job that was acknowledged has ended: none is stuck."""
        with anyio.move_on_after(LIMIT_S):
            while not self.watch.ended.keys() >= set(self.acknowledged):
                await anyio.sleep(_POLL_S)
        stuck = [job for job in self.acknowledged if job not in self.watch.ended]
        states = {job: (await self._job(job)).state.value for job in stuck}
        assert not states, f"stuck: {states}\n{self.logs()}"
        ends = {job: self.watch.ended[job] for job in self.acknowledged}
        assert {job for job, end in ends.items() if end != "completed"} == {
            job for job in ends if "-dead-" in job
        }

    async def _job(self, job: str) -> Any:
        return await self.ledger.handle_of(JobRef(queue="plain", job_id=job)).snapshot()

    async def ran(self, jobs: list[str]) -> Counter[str]:
        """Count how many jobs which release ran to the end."""
        found = [await self._job(job) for job in jobs if "-dead-" not in job]
        return Counter(json.loads(bytes(each.result)) for each in found)

    async def same_verdict(self, *releases: Release) -> None:
        """Let each release verify the ledger: sound, and the same digest."""
        head = (await self.ledger.log.head()).last_sequence
        said = [await self.command(each, "audit", "verify", "--json") for each in releases]
        assert [each.code for each in said] == [0] * len(said), said
        assert len({json.loads(each.out)["digest"] for each in said}) == 1
        assert (await self.ledger.log.head()).last_sequence == head

    def logs(self) -> str:
        """Return what workers said."""
        found = sorted(self._folder.glob("worker-*.log"))
        return "\n".join(f"{each.name}: {each.read_text(encoding='utf-8')[-4000:]}" for each in found)


@contextlib.asynccontextmanager
async def beside(old: Release, server_factory: ServerFactory, folder: Path) -> AsyncGenerator[Beside]:
    """Start a server, and let the old release make the ledger."""
    await anyio.Path(folder).mkdir()
    async with server_factory() as server:
        await anyio.run_process([str(old.python), "-c", _MAKE, server.url])
        async with connect(server.url) as ledger, Watch.following(ledger) as watch:
            assert (await ledger.log.head()).form == FORM_FIRST
            yield Beside(ledger, watch, server.url, folder)


_MAKE: Final = """
import asyncio, sys
from jobledger.ledger import connect
async def main():
    async with connect(sys.argv[1], lease_s=3.0): pass
asyncio.run(main())
"""


@pytest.mark.parametrize("commit", COMMITS)
async def test_two_releases_run_beside_each_other(
    commit: str, server_factory: ServerFactory, tmp_path: Path
) -> None:
    old = await anyio.to_thread.run_sync(build, commit)
    async with anyio.create_task_group() as group:  # most of the time they wait
        for name, first, second in (("forward", old, TODAY), ("back", TODAY, old)):
            folder = tmp_path / f"{commit}-{name}"
            group.start_soon(_upgrade, old, first, second, server_factory, folder)


async def _upgrade(
    old: Release, first: Release, second: Release, server_factory: ServerFactory, folder: Path
) -> None:
    """Let the second release join the first; go back to the old one; then end the upgrade."""
    async with beside(old, server_factory, folder) as both:
        await _killed_in_the_middle(both, first, second)
        await _at_once(both, old)
        await both.same_verdict(old, TODAY)
        await _roll_back(both, old)
        await both.same_verdict(old, TODAY)
        await _archived(both, old)
        await _finish(both, old)


async def _killed_in_the_middle(both: Beside, first: Release, second: Release) -> None:
    """Let the second release join, and kill the first while it runs jobs: the second finishes them."""
    both.tell("the first worker dies beside the second")
    async with both.worker(first) as dying:
        held = await both.enqueue(first, "held", "held")
        with anyio.fail_after(LIMIT_S):
            while not both.watch.running >= set(held):
                await anyio.sleep(_POLL_S)
        async with both.worker(second):
            a, b = await both.enqueue(first, "a1"), await both.enqueue(second, "a2")
            dying.send_signal(signal.SIGKILL)
            await dying.wait()
            await both.left_alone(second)
            await both.ended()
            assert await both.ran(held) == {second.name: len(held)}
            assert (await both.ran([*a, *b]))[second.name]


async def _at_once(both: Beside, old: Release) -> None:
    """Let workers of both releases run what both enqueue."""
    both.tell("both run what both enqueue")
    async with both.worker(old), both.worker(TODAY):
        await both.enqueue(old, "b1")
        await both.enqueue(TODAY, "b2")
        await both.ended()


async def _roll_back(both: Beside, old: Release) -> None:
    """Stop today's worker while jobs wait for a time or a retry: the old release alone runs them, and new ones."""
    both.tell("back to the old release")
    async with both.worker(TODAY):
        left = [*await both.enqueue(TODAY, "c1"), *await both.enqueue(old, "c2")]
    assert not both.watch.ended.keys() >= set(left)
    await both.left_alone(old)
    async with both.worker(old):
        later = await both.enqueue(old, "c3")
        await both.ended()
        assert (await both.ran(later)).keys() == {old.name}


async def _archived(both: Beside, old: Release) -> None:
    """Let the old release archive what both wrote: it is sound for today's."""
    both.tell("the old release archives")
    words = ("audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", "archive")
    done = await both.command(old, *words)
    if done.code and old.name == EARLIEST:
        assert "subscribers have not dealt with" in " ".join(done.err.split())
        await both.same_verdict(old, TODAY)
        return
    assert done.code == 0, done
    verdict = await both.command(TODAY, "audit", "verify", "--archive", "archive")
    assert verdict.code == 0, verdict
    await both.same_verdict(old, TODAY)


async def _finish(both: Beside, old: Release) -> None:
    """End the upgrade: refused while the old worker lives; then its programs stop with a sentence."""
    both.tell("the end of the upgrade")
    async with both.worker(old):
        assert len((await look_at_upgrade(both.ledger)).behind) == 1
        with pytest.raises(RefusedError, match="cannot read form"):
            await finish_upgrade(both.ledger, reason="")
    assert (await finish_upgrade(both.ledger, reason="all run it")).form == FORM
    async with both.worker(TODAY):
        await both.enqueue(TODAY, "d")
        await both.ended()
    await both.same_verdict(TODAY)
    head = (await both.ledger.log.head()).last_sequence
    refused = await both.command(old, "audit", "verify")
    assert refused.code != 0
    assert "newer" in " ".join((refused.out + refused.err).split()), refused
    assert (await both.ledger.log.head()).last_sequence == head
