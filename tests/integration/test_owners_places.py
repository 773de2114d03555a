"""One word in every kind of value of jobs that have an owner, looked for in every place to which a ledger goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_owners import Connect, found_in, greet, keeps, master_file
from tests.integration.test_owners_runs import OWNER, asked, book, breaks, fails, of_person, part, said, takes
from tests.support.working import LIMIT_S, ended, working

from jobledger.audit.archive.archiver import Archiver
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.deps import archive_deps
from jobledger.audit.export import write_export
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Unique, task
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.webhook import SetWebhook
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_webhook
from jobledger.ledger.webhooks.message import told_of
from jobledger.projections import Projector
from jobledger.workers.reactors.webhooks import WebhookReactor

pytestmark = pytest.mark.anyio

HEARD: list[str] = []


@task(max_attempts=1, queue="heard")
async def hears(type: str, timestamp: str, data: dict[str, Any]) -> None:  # noqa: A002 - as a message has it
    HEARD.append(str(data))


TASKS = (greet, keeps, book, breaks, fails, of_person, part, takes, hears)


async def make_all(ledger: Ledger, word: str) -> None:
    """Make jobs and runs that have the word in every value, and see them to their ends."""
    metadata = {"who": word}
    jobs = [
        await ledger.enqueue(greet, person=17, text=word),
        await ledger.enqueue(greet.options(id="large"), person=17, text=word * 6_000),
        await ledger.enqueue(keeps.options(**OWNER), text=word),
        await ledger.enqueue(fails.options(unique=Unique(), metadata=metadata, **OWNER), text=word),
        await ledger.enqueue(breaks.options(metadata=metadata, **OWNER), word),
    ]
    run = await ledger.enqueue(book.options(id="run", **OWNER), word)
    await ledger.note(run, word)
    await ledger.signal(run, asked, 7)
    await ledger.signal(run, said, word)
    for each in (*jobs, run):
        await ended(each)
    assert word in str(await run.result())


async def test_the_word_of_an_owner_is_found_in_no_place(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    HEARD.clear()
    caplog.set_level(logging.DEBUG, logger="jobledger")
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        hook = WebhookDefinition(
            target=WebhookTarget(task="hears", queue="heard"),
            queue="default",
            events=("completed", "failed"),
            include=("error", "input", "result"),
        )
        await change_webhook(ledger, "hook", SetWebhook(definition=hook))
        reacting = asyncio.create_task(WebhookReactor(ledger, look_every_s=0.02).run())
        async with working(ledger, *TASKS):
            await make_all(ledger, word)
            async with asyncio.timeout(LIMIT_S):
                while not any(f"hello {word}" in each for each in HEARD):
                    await asyncio.sleep(0.02)
        reacting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reacting
        ours = [each for each in caplog.records if each.name.startswith("jobledger")]
        assert ours
        assert not [each for each in ours if word in f"{each.getMessage()} {each.__dict__}"]
        bodies = await told(ledger)
        assert len(bodies) > 20
        assert not [each for each in bodies if word in each]
        with Projector(ledger.log, tmp_path / "projection.db") as projector:
            await projector.catch_up()
        await write_export(ledger.log, tmp_path / "export")
        deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
        await Archiver(ledger.log, tmp_path / "archive", deps).run(datetime.now(UTC), force=True)
        assert (await verify(await open_archive(ledger.log, tmp_path / "archive"))).sound
        assert found_in(nats_server.directory, word) == found_in(tmp_path, word) == {}


async def told(ledger: Ledger) -> list[str]:
    """Return the bodies of messages about each event, with all that a webhook may include."""
    found: list[str] = []
    async with contextlib.aclosing(ledger.log.read_messages()) as portions:
        async for portion in portions:
            for message in portion:
                if isinstance(message, StoredEvent):
                    body = await told_of(ledger, message, ("error", "input", "result"))
                    found.append(msgspec.json.encode(body).decode())
    return found
