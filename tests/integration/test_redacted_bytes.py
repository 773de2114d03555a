"""What a redaction leaves on the server's disk: no copy of a dead letter, and no large value that nothing names any more."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import ServerFactory
from tests.integration.test_owners import found_in
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, becomes, until, working

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.plan import unread
from jobledger.audit.archive.redacted_jobs import JobChoice
from jobledger.audit.archive.redactor import Redactor
from jobledger.audit.archive.unnamed import clear_values
from jobledger.audit.verify import verify
from jobledger.ledger import JobState, Ledger, connect, task
from jobledger.ledger.nats.dead_copies import erase_dead_copies
from jobledger.ledger.nats.stored_values import StoredValues

pytestmark = pytest.mark.anyio


@task(queue="work", max_attempts=1)
async def fails(text: str) -> None:
    raise ValueError(text[:200])


async def bury(ledger: Ledger, tenant: str, text: str) -> None:
    """Make a dead letter whose error and large input have a word, and discard it."""
    job = await ledger.enqueue(fails.options(tenant=tenant, id=tenant), text=text)
    await becomes(job, JobState.DEAD_LETTERED)
    await ledger.discard(job)


async def test_nothing_of_redacted_jobs_is_left_in_the_streams_beside_the_ledger(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    server, folder = server_factory(), tmp_path / "archive"
    await server.start()
    word, other, kept = (f"{name}-{secrets.token_hex(6)}-" for name in ("Canary", "Other", "Kept"))
    streams = server.directory / "jetstream" / "$G" / "streams"
    async with connect(server.url, ledger_bytes_max=16 << 20) as ledger:
        async with working(ledger, fails):
            await bury(ledger, "jane", word * 6_000)
            await bury(ledger, "joe", other * 6_000)
            # Stays, in the same block of the store: a block of which nothing is left is removed as a file.
            await ledger.enqueue(fails.options(queue="elsewhere"), text=kept * 6_000)
            last = (await ledger.log.head()).last_sequence
            async with asyncio.timeout(LIMIT_S):
                while await unread(ledger.log, ledger.inbox, last):
                    await asyncio.sleep(0.02)
        copies, values = streams / ledger.names.dlq_stream, streams / f"OBJ_{ledger.names.payloads_bucket}"
        await until(lambda: all(found_in(each, text) for each in (copies, values) for text in (word, other)))
        deps = archive_deps(ledger, by="ann", on_progress=lambda _step, _done, _total: None)
        await Archiver(ledger.log, folder, deps).run(ledger.clock.now())

        jane: Any = JobChoice(where={"tenant": "jane"})
        cut_off = await Redactor(ledger.log, folder, ledger.stamp).run(jane, reason="4711")
        assert (cut_off.jobs, found_in(copies, word) != {}) == (1, True)
        erase = partial(erase_dead_copies, ledger.inbox, ledger.names)
        whole = Redactor(ledger.log, folder, ledger.stamp, erase_dead=erase)
        assert [(await whole.run(jane, reason="4711")).dead_copies for _ in range(2)] == [1, 0]
        await until(lambda: found_in(copies, word) == {})
        assert found_in(copies, other), "those of other jobs stay"
        info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.dlq_stream}", {})
        assert info["state"]["messages"] == 1

        stored = StoredValues(ledger.inbox, ledger.names, ledger.inputs)
        now = ledger.clock.now()
        done = [
            await clear_values(ledger.log, stored, folder, now + timedelta(hours=hours)) for hours in (13, 50)
        ]
        assert (done[0].marked, done[1].deleted, done[1].places) == (2, 2, 2)
        await until(lambda: found_in(values, word) == {})
        assert found_in(values, other) == {}
        assert found_in(values, kept)
        assert found_in(folder, word) == {}
        with anyio.fail_after(LIMIT_S):
            report = await verify(await open_archive(ledger.log, folder))
        assert report.sound, report.text()
