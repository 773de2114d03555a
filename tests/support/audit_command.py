"""`jobledger audit` as tests run it: on an environment of their own, with jobs to make and outcomes to forge."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.working import LIMIT_S, working

from jobledger.ledger import Backoff, Context, Ledger, Retry, task
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import digest, encode
from jobledger.ledger.model.events import Completed
from jobledger.ledger.model.subjects import JobRef

#: How wide the terminal is.
WIDTH = 80


@task(queue="work", max_attempts=3, backoff=Backoff(base_s=0.05))
async def double(ctx: Context, number: int) -> int | Retry:
    if number == 3 and ctx.attempt == 1:
        raise ValueError(f"{number} does not \x1b[31mplease")
    return 2 * number


class AuditCommand(CommandLine):
    """`jobledger audit` on an environment of the test's own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.folder = folder
        self._projection = folder / "projection.db"

    def __call__(self, *words: str) -> Answer:
        projection = ["--projection", str(self._projection)] if words[0] == "trail" else []
        return self.run("audit", *words, *self.where, *projection)

    def work(self, *numbers: int) -> list[str]:
        """Enqueue, and let a worker run until every job is final; return the ids."""

        async def work(ledger: Ledger) -> list[str]:
            jobs = [await ledger.enqueue(double, number) for number in numbers]
            async with working(ledger, double):
                await asyncio.gather(*(job.wait(timeout_s=LIMIT_S) for job in jobs))
            return [job.id for job in jobs]

        return self.with_ledger(work)

    def forge(self, job_id: str, prev: str = "") -> int:
        """Publish, past all rules, a second outcome with the right condition; the right link too, without `prev`."""

        async def forge(ledger: Ledger) -> int:
            ref = JobRef(queue="work", job_id=job_id)
            chain = await load(ledger.log, ref)
            event = Completed(
                job=job_id,
                queue="work",
                task=double.name,
                at=datetime.now(UTC),
                by="mallory",
                attempt=1,
                prev=prev or digest(chain.last_data),
            )
            condition = {
                "Nats-Expected-Last-Subject-Sequence": str(chain.last_sequence),
                "Nats-Expected-Last-Subject-Sequence-Subject": ledger.names.chain(ref),
            }
            raw = await nats.connect(self.url)
            try:
                accepted = await raw.jetstream().publish(
                    ledger.names.event(event), encode(event), headers=condition
                )
            finally:
                await raw.close()
            return accepted.seq

        return self.with_ledger(forge)
