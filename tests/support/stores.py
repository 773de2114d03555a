"""Real nats-server stores to be damaged: made once, copied for each trial, and what can be told of each copy."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
from tests.conftest import ServerFactory
from tests.support.jetstream import api
from tests.support.stories import BOOM, NAMES, Story

from jobledger.audit.verify import Report, verify
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.commands import Complete, Fail, TakeOver
from jobledger.ledger.model.errors import CorruptLedgerError, LedgerError
from jobledger.ledger.model.log import Entry
from jobledger.projections import ProjectionError, Projector, Store, difference, rebuild

#: So small that the server begins a new block file every 32 KB; it is raised before the first event.
_SMALL: Final = 120_000
_ROOM: Final = 64 << 20
_LATER: Final = 40  #: events that are appended to a damaged ledger

End = Literal["SIGTERM", "SIGKILL"]


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A store at rest, and what was known of its ledger before anything happened to it."""

    folder: Path
    messages: list[tuple[str, bytes]]  #: subject and stored bytes; index = stream sequence - 1
    report: Report
    projection: Path

    def blocks(self, folder: Path) -> list[Path]:
        """Return the ledger's block files in a copy, in the order of their events."""
        return sorted(ledger_folder(folder).glob("msgs/*.blk"), key=lambda path: int(path.stem))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a damaged copy."""

    head: int
    wrong: list[int]  #: stream sequences whose event is not there, or another
    gone: list[int]  #: those of them at which nothing is
    alone: Report  #: `audit verify`
    against: Report  #: the same against the earlier report
    projector: str  #: the error that stopped it; "" when it went on
    projector_later: str  #: the same after more was appended
    rows_kept: bool  #: the rows of what was there before are as they were
    rebuilt: str  #: the error that stopped a rebuild; "" when it went through

    @property
    def is_whole(self) -> bool:
        """Whether the server lost nothing at all."""
        return not self.wrong

    @property
    def lost_only_its_end(self) -> bool:
        """Whether what is left is a ledger in itself, only shorter."""
        return bool(self.wrong) and self.wrong[0] == self.head + 1


def ledger_folder(folder: Path) -> Path:
    """Return where a server keeps the ledger's stream."""
    return folder / "jetstream" / "$G" / "streams" / NAMES.ledger_stream


def history(chance: random.Random, jobs: int) -> Story:
    """Jobs side by side: most run once, some are retried or taken over, some become dead letters."""
    story = Story()
    under_way = [f"job-{number:04}" for number in range(jobs)]
    for name in under_way:
        story.enqueue(name, max_attempts=2)
    while under_way:
        name = chance.choice(under_way[:20])
        job = story.chains[story.ref(name)].job
        assert job is not None
        if job.is_final:
            under_way.remove(name)
        elif not job.claim_epoch:
            story.claim(name)
        elif (dice := chance.random()) < 0.7:
            story.do(name, Complete(epoch=job.claim_epoch, result=msgspec.Raw(b'"sent"')))
        elif dice < 0.9:
            story.do(name, Fail(epoch=job.claim_epoch, error=BOOM))
        else:
            story.do(name, TakeOver(worker="w2", lease_s=15, lost_epoch=job.claim_epoch))
    return story


async def store_in(ledger: Ledger, story: Story, first: int = 1, last: int | None = None) -> None:
    """Append a story's events with their conditions, many in flight."""
    lasts: dict[str, int] = {}
    outcomes: list[Awaitable[int]] = []
    for number, message in enumerate(story.messages[:last], 1):
        chain = ".".join([*message.subject.split(".")[:4], ">"])
        if number >= first:
            entry = Entry(message.subject, message.data, chain, lasts.get(chain, 0))
            outcomes.append(ledger.log.submit([entry]))
        lasts[chain] = number
    await asyncio.gather(*outcomes)


async def make_store(servers: ServerFactory, folder: Path, story: Story, end: End, stop_at: int = 0) -> Made:
    """Make a store of several blocks, end its server, and keep what is known; `stop_at` keeps a copy of then as well."""
    server = servers(folder)
    await server.start()
    projection = folder.parent / f"{folder.name}.db"
    async with connect(server.url, ledger_bytes_max=_SMALL) as ledger:
        stream = ledger.names.ledger_stream
        config = (await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["config"]
        answer = await api(ledger.inbox, f"STREAM.UPDATE.{stream}", {**config, "max_bytes": _ROOM})
        assert "error" not in answer
        if stop_at:
            await store_in(ledger, story, last=stop_at)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)  # as a snapshot of the disk would find it
            shutil.copytree(folder, older_folder(folder), ignore=_ignored)
            os.kill(server.pid, signal.SIGCONT)
        await store_in(ledger, story, first=stop_at + 1)
        report = await verify(ledger.log)
        assert (report.sound, report.events) == (True, len(story.messages))
        with Projector(ledger.log, projection) as projector:
            _ = await projector.catch_up()
    if end == "SIGKILL":
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
    else:
        await server.stop()
    messages = [(message.subject, message.data) for message in story.messages]
    return Made(folder=folder, messages=messages, report=report, projection=projection)


def older_folder(folder: Path) -> Path:
    """Return where `make_store` keeps the store as it was at `stop_at`."""
    return folder.with_name(f"{folder.name}-older")


_ignored = shutil.ignore_patterns("embedded.lock", "*.log")


@asynccontextmanager
async def copied(
    servers: ServerFactory,
    made: Made,
    folder: Path,
    damage: Callable[[Path], object],
    source: Path | None = None,
) -> AsyncGenerator[Ledger, None]:
    """Damage a copy, and serve it for the length of the block."""
    shutil.copytree(source or made.folder, folder, ignore=_ignored)
    damage(folder)
    server = servers(folder)
    try:
        await server.start()
        async with connect(server.url, ledger_bytes_max=_ROOM) as ledger:
            yield ledger
    finally:
        await server.stop()
        shutil.rmtree(folder)


async def look_into(ledger: Ledger, made: Made, folder: Path) -> Found:
    """Check a damaged ledger in every way there is, then let it grow and look at the projector once more."""
    head = (await ledger.log.head()).last_sequence
    alone = await verify(ledger.log)
    against = await verify(ledger.log, before=made.report)
    projection, fresh = folder / "followed.db", folder / "rebuilt.db"
    shutil.copy(made.projection, projection)
    projector = await _error_of(_catch_up(ledger, projection))
    rebuilt = await _error_of(rebuild(ledger.log, fresh))
    stored = await _stored(ledger)
    there = list(enumerate(made.messages, 1))
    for number in range(_LATER):
        await ledger.log.append(_entry_of(number))
    projector_later = await _error_of(_catch_up(ledger, projection))
    found = Found(
        head=head,
        wrong=[number for number, message in there if stored.get(number) != message],
        gone=[number for number, _ in there if number not in stored],
        alone=alone,
        against=against,
        projector=projector,
        projector_later=projector_later,
        rows_kept=_jobs(projection) == _jobs(made.projection),
        rebuilt=rebuilt,
    )
    if projector_later:
        assert difference(projection, made.projection) is None, "a projector that stops changes nothing"
    return found


def _entry_of(number: int) -> list[Entry]:
    story = Story()
    story.enqueue(f"later-{number}")
    message = story.messages[0]
    return [Entry(message.subject, message.data, ".".join([*message.subject.split(".")[:4], ">"]), 0)]


async def _catch_up(ledger: Ledger, path: Path) -> None:
    with Projector(ledger.log, path) as projector:
        _ = await projector.catch_up()


async def _error_of(work: Awaitable[object]) -> str:
    try:
        await work
    except (LedgerError, ProjectionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def _stored(ledger: Ledger) -> dict[int, tuple[str, bytes]]:
    """Return subject and bytes of whatever is stored, by sequence."""
    found: dict[int, tuple[str, bytes]] = {}
    position = 1
    while True:
        try:
            batches = ledger.log.read_messages(from_sequence=position, subject=ledger.names.all_events)
            async with aclosing(batches):
                async for batch in batches:
                    found |= {each.stream_sequence: (each.subject, each.data) for each in batch}
            break
        except CorruptLedgerError as error:
            position = error.next_sequence
            if not position:
                break
    return found


def _jobs(path: Path) -> dict[str, bytes]:
    """Return every job of the first story with its state, from the rows."""
    with Store.open(path) as store:
        rows = store.jobs(limit=100_000)
    return {row.id: msgspec.json.encode(row) for row in rows if row.id.startswith("job-")}
