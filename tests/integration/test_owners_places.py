"""One word in every kind of value of jobs that have an owner, looked for in every place to which a ledger goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from tests.integration.test_owners import Connect, found_in, greet, keeps, master_file
from tests.integration.test_owners_runs import OWNER, asked, book, breaks, fails, of_person, part, said, takes
from tests.support.working import LIMIT_S, becomes, ended, working

from jobledger.audit.archive.archiver import Archiver
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.deps import archive_deps
from jobledger.audit.export import write_export
from jobledger.audit.verify import verify
from jobledger.ledger import Cancel, JobState, Ledger, Limit, Run, Signal, Unique, task, workflow
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.webhook import SetWebhook
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_webhook
from jobledger.ledger.webhooks.message import told_of
from jobledger.projections import Projector, ProjectorConfig
from jobledger.projections.snapshots import SnapshotConfig, Snapshots
from jobledger.workers.reactors.webhooks import WebhookReactor

pytestmark = pytest.mark.anyio

HEARD: list[str] = []


@task(max_attempts=1, queue="heard")
async def hears(type: str, timestamp: str, data: dict[str, Any]) -> None:  # noqa: A002 - as a message has it
    HEARD.append(str(data))


@task(limits=(Limit("customer", slots=5, key="text"),), unique=Unique(for_s=3600), max_attempts=1)
async def limited(text: str) -> str:
    return text


@task(max_attempts=1)
async def gives_up(text: str) -> Cancel:
    return Cancel(f"nothing to do for {text}")


@task(max_attempts=1)
async def mends(text: str) -> str:
    if "mended" not in text:
        raise KeyError(text)
    return text


@workflow(max_attempts=1, on_success=takes.options(metadata={"kind": "callback"}))
async def misheard(run: Run, text: str) -> str:
    number = await run.wait(asked)
    return f"{text} {number}"


TASKS = (greet, keeps, book, breaks, fails, of_person, part, takes, hears, limited, gives_up, mends, misheard)


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
    jobs += [await ledger.enqueue(each.options(**OWNER), text=word) for each in (limited, gives_up)]
    await ledger.schedules.add(
        "daily", part.options(metadata=metadata, **OWNER), input={"text": word}, on_demand=True
    )
    jobs.append(await ledger.job((await ledger.schedules.trigger("daily")).job_id))
    run = await ledger.enqueue(book.options(id="run", **OWNER), word)
    await ledger.note(run, word)
    await ledger.signal(run, asked, 7)
    await ledger.signal(run, said, word)
    confused = await ledger.job("confused")
    await ledger.signal(confused, asked, 7)
    mended = await ledger.enqueue(mends.options(metadata=metadata, **OWNER), text=word)
    await becomes(mended, JobState.DEAD_LETTERED)
    await ledger.requeue(mended, input={"text": f"{word} mended"})
    jobs += [confused, mended]
    for each in (*jobs, run):
        await ended(each)
    again = await ledger.rerun(run, from_step="echoes", input={"text": f"{word} again"})
    await ledger.signal(again, asked, 8)
    await ledger.signal(again, said, word)
    assert word in str(await run.result())
    assert f"{word} again" in str(await again.result(timeout_s=LIMIT_S))
    assert await mended.result(timeout_s=LIMIT_S) == f"{word} mended"
    heard = await (await ledger.job("confused-end")).result(timeout_s=LIMIT_S)
    assert heard.startswith(f"completed {word} 7")
    kept = (await confused.snapshot()).signals
    assert [bool(each.refused) for each in kept] == [True, False]


@contextlib.asynccontextmanager
async def overheard(server: EmbeddedServer) -> AsyncGenerator[list[Msg]]:
    """Hear whatever anybody sends to the server, and what it answers."""
    found: list[Msg] = []

    async def hear(message: Msg) -> None:
        found.append(message)

    client = await nats.connect(server.url)
    try:
        await client.subscribe(">", cb=hear, pending_bytes_limit=1 << 30, pending_msgs_limit=1 << 20)
        await client.flush()
        yield found
    finally:
        await client.close()


async def test_the_word_of_an_owner_is_found_in_no_place(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    HEARD.clear()
    caplog.set_level(logging.DEBUG, logger="jobledger")
    async with (
        overheard(nats_server) as messages,
        connected(master_key=master_file(tmp_path, "m1")) as ledger,
    ):
        hook = WebhookDefinition(
            target=WebhookTarget(task="hears", queue="heard"),
            queue="default",
            events=("completed", "failed"),
            include=("error", "input", "result"),
        )
        await change_webhook(ledger, "hook", SetWebhook(definition=hook))
        reacting = asyncio.create_task(WebhookReactor(ledger, look_every_s=0.02).run())
        confused = await ledger.enqueue(misheard.options(id="confused", **OWNER), word)
        # While no worker announced its signals, its wait refuses a wrong one, and says why.
        await ledger.signal(confused, Signal("asked", str), word)
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
        assert len(messages) > 100
        assert not [
            each.subject for each in messages if word in f"{each.subject} {each.data.decode('latin-1')}"
        ]
        assert {"noted", "progressed", "signal_refused", "held"} <= await kinds(ledger)
        rows = tmp_path / "projection.db"
        snapshots = Snapshots(rows, config=SnapshotConfig(every_events=20, time_share_max=1.0))
        with Projector(
            ledger.log, rows, config=ProjectorConfig(batch_events_max=7), snapshots=snapshots
        ) as projector:
            await projector.catch_up()
        assert snapshots.found()
        await write_export(ledger.log, tmp_path / "export")
        deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
        await Archiver(ledger.log, tmp_path / "archive", deps).run(datetime.now(UTC), force=True)
        assert (await verify(await open_archive(ledger.log, tmp_path / "archive"))).sound
        assert found_in(nats_server.directory, word) == found_in(tmp_path, word) == {}


async def kinds(ledger: Ledger) -> set[str]:
    """Return the types of the ledger's events."""
    found: set[str] = set()
    async with contextlib.aclosing(ledger.log.read_messages()) as portions:
        async for portion in portions:
            found |= {event_type(each.event) for each in portion if isinstance(each, StoredEvent)}
    return found


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
