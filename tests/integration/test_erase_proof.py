"""An erased owner together with an archive and seals: all that was proven before is proven after, and nobody reads values."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from tests.integration.test_erase import OWNED, Connect, Moved, erase, fails, greet, master, work
from tests.support.limits import LIMIT_S
from tests.support.working import becomes, working

from jobledger.admin.erasure import SETTLE_S
from jobledger.audit.archive.archiver import Archiver
from jobledger.audit.archive.deps import archive_deps
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.cli.main import run
from jobledger.ledger import Ledger
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.owner import GRACE_S
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
WORD = "Canary-Jane-9072"


async def archived(ledger: Ledger, folder: Path) -> None:
    """Move what has ended by now into an archive."""
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    async with working(ledger, greet, fails), asyncio.timeout(LIMIT_S):  # its reactors look at all ends first
        while True:
            with contextlib.suppress(ArchiveRefusedError):
                await Archiver(ledger.log, folder, deps).run(datetime.now(UTC), force=True)
                return
            await asyncio.sleep(0.05)


@pytest.fixture
def command(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run a command in a thread, and return its code and what it printed."""
    monkeypatch.setenv("JOBLEDGER_URL", nats_server.url)

    def call(*words: str) -> tuple[int, str]:
        code = run(words)
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    async def asked(*words: str) -> tuple[int, str]:
        return await anyio.to_thread.run_sync(call, *words)

    return asked


async def test_the_proof_of_a_history_outlives_the_data_of_an_owner(
    connected: Connect, command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, key, rows, archive = Moved(), master(tmp_path), tmp_path / "jobs.db", tmp_path / "archive"
    seals = ("--seal-key", str(tmp_path / "seal.pem.pub"), "--seal", str(tmp_path / "seals.jsonl"))
    checked = ("audit", "verify", "--archive", str(archive), *seals)
    sealed = (
        "audit",
        "seal",
        "--key",
        str(tmp_path / "seal.pem"),
        "--publish",
        str(tmp_path / "seals.jsonl"),
    )
    async with connected(master_key=key, clock=clock) as ledger:
        monkeypatch.setenv("JOBLEDGER_ENVIRONMENT", ledger.names.environment)
        monkeypatch.setenv("JOBLEDGER_MASTER_KEY", key)
        old = await ledger.enqueue(greet.options(id="old", **OWNED), text=WORD)
        await work(ledger, old)
        assert (await command("audit", "keygen", str(tmp_path / "seal.pem")))[0] == 0
        assert (await command(*sealed))[0] == 0
        await archived(ledger, archive)
        kept = await ledger.enqueue(greet.options(id="kept", **OWNED), text=WORD)
        large = await ledger.enqueue(greet.options(id="large", **OWNED), text=WORD * 6_000)
        dead = await ledger.enqueue(fails.options(id="dead", **OWNED), text=WORD)
        await work(ledger, kept, large, dead)
        assert (await command(*sealed))[0] == 0
        code, said = await command(*checked)
        assert code == 0, said
        past = ("jobs", "show", "old", "--archive", str(archive))
        assert WORD in (await command(*past))[1]

        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            await erase(ledger, rows)
        assert (await erase(ledger, rows)).state == "erased"
        assert (await becomes(dead, JobState.DISCARDED)).state is JobState.DISCARDED
        for _ in range(2):  # with what the erasure added, and once that is archived, too
            code, said = await command(*checked)
            assert code == 0, said
            assert "NOT sound" not in said
            for job in ("old", "kept", "large", "dead"):
                code, said = await command("jobs", "show", job, "--archive", str(archive))
                assert (code, WORD in said, '"erased"' in said) == (0, False, True), said
            code, said = await command("jobs", "show", "old", "--archive", str(archive), "--json")
            assert json.loads(said.splitlines()[0])["input"] == {"erased": "person:17/1"}
            assert (await command(*sealed))[0] == 0
            await archived(ledger, archive)
        back = await ledger.enqueue(greet.options(id="back", **OWNED), text=WORD)
        assert (await back.snapshot()).order.key == "person:17/2"
        assert (await command(*checked))[0] == 0
