"""The LEDGER stream is deleted under all that runs on it: nothing makes an empty one, and nothing calls one sound."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import anyio
import nats
import pytest
from tests.integration.conftest import Process
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S

from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(180)]

JOBS = 20
APP = "from jobledger.ledger import task\n\n@task(queue='q')\nasync def idle() -> None: ...\n"


async def _streams(url: str) -> set[str]:
    client = await nats.connect(url)
    try:
        return {info.config.name or "" for info in await client.jetstream().streams_info()}
    finally:
        await client.close()


async def _delete(url: str, stream: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().delete_stream(stream)
    await client.close()


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


async def test_a_deleted_ledger_does_not_come_back_empty(
    server: EmbeddedServer, tmp_path: Path, record: Recorder
) -> None:
    """Row deleted: under a supervised worker, a projector and an exporter; later the worker, too, is killed and restarted."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    variables = {"JOBLEDGER_URL": server.url}
    made: list[Process] = []

    def start(*words: str) -> Process:
        made.append(Process(tmp_path, *words, variables=variables))
        return made[-1]

    def ask(*words: str) -> tuple[int, str]:
        process = start(*words)
        rest = process.rest()
        return process.end(), " ".join((" ".join(rest) + process.errors).split())

    try:
        supervisor = start("worker", "--app", "app.py", "--processes", "1", "--json")
        supervisor.line()
        worker = supervisor.line()
        for number in range(JOBS):
            assert ask("enqueue", "idle", "--app", "app.py", "--id", f"j{number}", "--wait")[0] == 0
        projector, exporter = start("projection", "run"), start("metrics", "--port", "0", "--json")
        health = exporter.line()["metrics"].replace("/metrics", "/healthz")
        assert ask("jobs", "list")[0] == 0

        await _delete(server.url, "LEDGER")
        began = time.monotonic()
        assert await anyio.to_thread.run_sync(projector.end) == 3
        noticed_s = time.monotonic() - began
        assert "somebody deleted it" in projector.errors
        with anyio.fail_after(LIMIT_S):
            while "somebody deleted it" not in await anyio.to_thread.run_sync(_page, health):
                await anyio.sleep(0.1)
        for words in ("audit verify", "doctor", "jobs list", "jobs show j1", "workers list"):
            code, said = await anyio.to_thread.run_sync(ask, *words.split())
            assert (code, "has read 60 events of a ledger there" in said) == (3, True), said
        assert supervisor.child.poll() is None
        # One that is started again by its supervisor makes none, either.
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(worker["pid"], signal.SIGKILL)
        await anyio.to_thread.run_sync(supervisor.said, "there is no ledger", LIMIT_S)
        assert "LEDGER" not in await _streams(server.url)
    finally:
        for process in reversed(made):
            process.close()
    record(
        "deleted",
        "the ledger's stream deleted under worker, projector and exporter",
        faults="1 deletion, 1 kill of the worker after it; no command and no restart made an empty ledger",
        jobs=JOBS,
        events=3 * JOBS,
        now=time.monotonic(),
        worst_recovery=f"{noticed_s:.1f} s until the projector said so",
    )
