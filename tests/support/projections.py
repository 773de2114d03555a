"""What the tests of projections share: bringing one up to its log, and proving it right."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import (
    Projector,
    ProjectorConfig,
    Store,
    difference,
    rebuild,
)

SMALL = ProjectorConfig(batch_events_max=7, cache_jobs_max=3, linger_s=0.0)


async def finish(log: Log, path: Path, config: ProjectorConfig = SMALL) -> None:
    with Projector(log, path, config=config) as projector:
        await projector.catch_up()


async def assert_true(log: Log, path: Path) -> None:
    """The rows at `path` are what a rebuild gives, and each fold is what the chain gives."""
    fresh = path.with_name(f"{path.name}-fresh-{secrets.token_hex(4)}")
    await rebuild(log, fresh)
    assert difference(path, fresh) is None
    with Store.open(path) as store:
        for row in store.jobs(limit=100_000):
            chain = await load(log, JobRef(queue=row.queue, job_id=row.id))
            assert store.folded(row.queue, row.id) == chain.job


class Cut(MemoryLog):
    """A log of which one event is not handed out."""

    def __init__(self, whole: MemoryLog, *, without: int) -> None:
        super().__init__(names=whole.names)
        self.copy_from(whole)
        self._without = without

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        whole = super().read_messages(
            from_sequence=from_sequence, from_time=from_time, subject=subject, follow=follow
        )
        async for batch in whole:
            yield [stored for stored in batch if stored.stream_sequence != self._without]


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if ".rebuild" in path.name or ".ready" in path.name]


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")
