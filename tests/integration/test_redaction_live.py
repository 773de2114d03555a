"""One word in every kind of value of jobs in the clear, which is in no place of the archive after these were redacted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from tests.integration.test_owners import Connect, fails, found_in, keeps
from tests.integration.test_owners_runs import asked, echoes, joins, part, said, takes, tries
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.audit.archive.archiver import Archiver
from jobledger.audit.archive.chain import export_folders, read_past
from jobledger.audit.archive.deps import archive_deps
from jobledger.audit.archive.plan import unread
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.export import read_manifest
from jobledger.audit.verify import Report, Witness, verify
from jobledger.audit.verify.seals import seals_as_witness
from jobledger.cli.main import run
from jobledger.ledger import Graph, JobHandle, Ledger, Run, StepFailedError, Unique, task, workflow
from jobledger.ledger.model.commands import RequestPause, ResumeJob
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.ledger.model.log import jobs_among
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@task(max_attempts=1)
async def says(text: str) -> str:
    return f"hello {text}"


@workflow(on_success=takes, max_attempts=3)
async def book(run: Run, text: str) -> str:
    found = await run.step(echoes, text)
    with contextlib.suppress(StepFailedError):
        await run.step(tries, found)
    parts = await run.map(part, [f"{text}-{number}" for number in range(12)])
    await run.map_settled(fails, [text])
    number = await run.wait(asked)
    heard = await run.wait(said)
    return f"{found} {heard} {number} {parts[3]}"


@workflow(max_attempts=1)
async def short(run: Run, text: str) -> str:
    return await run.step(echoes, text) + await run.wait(said)


TASKS = (short, says, keeps, fails, book, part, takes, joins)


async def begin_all(ledger: Ledger, word: str, tenant: str) -> JobHandle[str]:
    """Make jobs that have the word in every value; return a run that waits for a signal with it."""
    acme: dict[str, Any] = {"tenant": tenant, "metadata": {"who": word}}
    graph = Graph("two")
    graph.add(joins, graph.add(part, word), more=word)
    two, values = await graph.as_task(ledger)
    jobs = [
        await ledger.enqueue(says.options(id=f"small-{tenant}", **acme), text=word),
        await ledger.enqueue(says.options(id=f"large-{tenant}", **acme), text=word * 6_000),
        await ledger.enqueue(keeps.options(**acme), text=word),
        await ledger.enqueue(fails.options(unique=Unique(), **acme), text=word),
        await ledger.enqueue(two.options(id=f"graph-{tenant}", **acme), **values),
    ]
    run = await ledger.enqueue(book.options(id=f"run-{tenant}", **acme), word)
    await ledger.note(run, word)
    await ledger.signal(run, asked, 7)
    for each in jobs:
        await ended(each)
    async with asyncio.timeout(LIMIT_S):
        while list((await run.snapshot()).awaited) != ["said"]:
            await asyncio.sleep(0.02)
    async for portion in ledger.log.read_messages(subject=ledger.names.all_of_type("dead_lettered")):
        for message in jobs_among(portion):
            with contextlib.suppress(IllegalTransitionError):
                await ledger.discard(
                    message.event.job, queue=message.event.queue, reason=f"because of {word}"
                )
    await ledger.execute(run.ref, RequestPause(reason=f"because of {word}"))
    await ledger.signal(run, said, f"{word}-" * 9_000)
    return run


async def end_all(ledger: Ledger, run: JobHandle[str], word: str, tenant: str) -> None:
    """Let all that is not over end, with the word in every reason."""
    await ledger.execute(run.ref, ResumeJob(reason=f"because of {word}"))
    await ended(run)
    assert word in str(await run.result())
    await ended(await ledger.job(f"run-{tenant}-end"))
    first = await ledger.enqueue(short.options(tenant=tenant), word)
    await ledger.signal(first, said, word)
    await ended(first)
    again = await ledger.rerun(first, from_step="said", id=f"again-{tenant}", reason=f"because of {word}")
    await ledger.signal(again, said, word)
    await ended(again)


async def proven(ledger: Ledger, folder: Path, before: Report | None = None) -> Report:
    past = await read_past(ledger.log, [folder])
    seals = await seals_as_witness(past.log)
    witnesses: list[Witness] = [ArchiveWitness(past, ledger.log)]
    if seals is not None:
        witnesses.append(seals)
    return await verify(past.log, before=before, witnesses=witnesses)


async def archive(ledger: Ledger, folder: Path) -> None:
    """Move all that is over, once the worker has looked at the ends of runs."""
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    async with asyncio.timeout(LIMIT_S):
        while await unread(ledger.log, ledger.inbox, (await ledger.log.head()).last_sequence):
            await asyncio.sleep(0.02)
    await Archiver(ledger.log, folder, deps).run(datetime.now(UTC), force=True)


async def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = await anyio.to_thread.run_sync(run, words)
    shown = capsys.readouterr()
    return code, f"{shown.out}{shown.err}"


async def test_the_word_of_redacted_jobs_is_in_no_place_of_the_archive(
    connected: Connect,
    nats_server: EmbeddedServer,
    environment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    word, other, folder = (
        f"Canary-{secrets.token_hex(6)}",
        f"Other-{secrets.token_hex(6)}",
        tmp_path / "archive",
    )
    async with connected() as ledger:
        async with working(ledger, *TASKS):
            acme, emca = await begin_all(ledger, word, "acme"), await begin_all(ledger, other, "emca")
            await archive(ledger, folder)  # in the middle of both runs
            await end_all(ledger, acme, word, "acme")
            await end_all(ledger, emca, other, "emca")
            await archive(ledger, folder)
        before = await proven(ledger, folder)
        assert before.sound, before.text()
        kept, exports = found_in(folder, other), export_folders([folder])
        assert (len(exports), sum(found_in(folder, word).values()) > 60) == (2, True)
        values = [stored(each) for each in exports]
        where = ("--url", nats_server.url, "--environment", environment)
        redact = (
            "audit",
            "redact",
            "--archive",
            str(folder),
            "--where",
            "tenant=acme",
            "--reason",
            "4711",
            *where,
        )
        code, shown = await answer(capsys, *redact, "--plan", "--json")
        planned = json.loads(shown)
        assert (code, planned["living"], len(planned["exports"])) == (0, 0, 2), shown
        code, shown = await answer(capsys, *redact, "--json")
        assert (code, json.loads(shown)) == (0, {**planned, "dead_copies": 2}), shown
        report = await proven(ledger, folder, before)
        assert report.sound, report.text()
        assert found_in(folder, word) == {}
        assert found_in(folder, other) == kept
        assert [stored(each) for each in exports] == [count // 2 for count in values]
        assert (report.redacted, report.copies_unproven > 0) == (planned["events"], True)
        code, shown = await answer(
            capsys, "audit", "verify", "--archive", str(folder), "--with-payloads", *where
        )
        assert (code, "the ledger is sound" in shown, "redacted events said" in shown) == (0, True, True), (
            shown
        )
        await read_it(capsys, folder, tmp_path, where)
        assert found_in(tmp_path / "projection", word) == {}


def stored(export: Path) -> int:
    payloads = read_manifest(export).payloads
    assert not isinstance(payloads, msgspec.UnsetType)
    return payloads.stored


async def read_it(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, where: tuple[str, ...]
) -> None:
    """Read the redacted jobs through each command that reads an archive."""
    (tmp_path / "projection").mkdir()
    rows = ("--archive", str(folder), "--projection", str(tmp_path / "projection" / "jobs.db"), *where)
    for words in (("projection", "rebuild"), ("projection", "verify")):
        code, shown = await answer(capsys, *words, *rows)
        assert code == 0, (words, shown)
    code, shown = await answer(capsys, "jobs", "show", "small-acme", "--json", *rows)
    job = json.loads(shown)
    assert (job["status"], job["input"], job["result"]) == (
        "completed",
        {"redacted": True},
        {"redacted": True},
    )
    assert job["metadata"] == {"who": "redacted"}
    asked_for: tuple[tuple[str, ...], ...] = (
        ("jobs", "show", "run-acme"),
        ("jobs", "show", "large-acme"),
        ("jobs", "show", "run-acme", "--steps"),
        ("jobs", "show", "run-acme", "--steps", "--json"),
        ("jobs", "show", "graph-acme", "--graph"),
        ("audit", "trail", "run-acme"),
        ("audit", "trail", "again-acme", "--json"),
        ("audit", "who"),
    )
    for question in asked_for:
        code, shown = await answer(capsys, *question, *rows)
        assert (code, "Canary-" in shown) == (0, False), (question, shown)
    app = ("--app", "tests.integration.test_redaction_live")
    code, shown = await answer(capsys, "jobs", "debug", "small-acme", *app, *rows)
    assert (code, "were redacted in the archive: it cannot run again" in shown) == (2, True), shown
    export = export_folders([folder])[0]
    code, shown = await answer(capsys, "audit", "restore", str(export), *where)
    assert (code, "cannot be brought back as they were stored" in " ".join(shown.split())) == (4, True), shown
