"""What readers outside jobledger find in a projection's file: views, indexes, and no need to write."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from tests.support.histories import SteppedClock, act
from tests.support.limits import LIMIT_S
from tests.support.projections import finish

from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import Projector, SaidFilter, Store
from jobledger.projections.tables.registry import all_views

pytestmark = pytest.mark.anyio

_PAGE = Path(__file__).parents[2] / "docs" / "projections.md"


@pytest.fixture
async def log() -> MemoryLog:
    log, clock = MemoryLog(), SteppedClock()
    for number in range(6):
        await act(log, number, "claim", clock)
    for number in range(6):
        await act(log, number, "claim", clock)
    for number in range(3):
        await act(log, number, "complete", clock)
    await act(log, 3, "give_up", clock)
    return log


@pytest.fixture
async def store(log: MemoryLog, tmp_path: Path) -> AsyncIterator[Store]:
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        yield store


async def test_a_view_shows_its_table_under_lasting_names(store: Store) -> None:
    pairs = store.select(
        "SELECT v.processed_at, t.started_at, v.last_error, t.error FROM v_jobs v JOIN jobs t USING (id, queue)"
    )
    assert [pair[0] for pair in pairs] == [pair[1] for pair in pairs]
    assert [pair[2] for pair in pairs] == [pair[3] for pair in pairs]
    assert sum(pair[0] is not None for pair in pairs) == 6
    assert sum(pair[2] is not None for pair in pairs) == 1
    assert store.select("SELECT count(*) FROM v_attempts") == store.select("SELECT count(*) FROM attempts")


async def test_views_leave_out_what_is_for_the_projector_alone(store: Store) -> None:
    for view in all_views():
        found = [row[1] for row in store.select(f"PRAGMA table_info({view.name})")]
        assert found == list(view.columns)
        assert not {"fold", "first_us", "since_us"}.intersection(found)


@pytest.mark.parametrize(
    ("question", "index"),
    [
        ("SELECT * FROM v_attempts WHERE job_id = 'j'", "attempts_by_job_id"),
        ("SELECT * FROM v_jobs WHERE completed_at >= '2025-01-31'", "jobs_by_completed_at"),
        (
            f"SELECT * FROM v_jobs WHERE {SaidFilter(tenant='a').terms()[0].sql.replace('?', repr('a'))}",
            "jobs_by_tenant_created_at",
        ),
        (
            "SELECT * FROM v_jobs WHERE task = 't' AND status = 'completed' AND created_at >= '2025-01-31'",
            "jobs_by_task_status_created_at",
        ),
    ],
)
async def test_usual_questions_are_answered_from_an_index(store: Store, question: str, index: str) -> None:
    plan = " ".join(str(row[3]) for row in store.select(f"EXPLAIN QUERY PLAN {question}"))
    assert f"USING INDEX {index}" in plan, plan


async def test_the_queries_of_the_page_run(store: Store) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    queries = [each for block in blocks for each in block.split(";") if each.strip()]
    assert len(queries) >= 3
    for query in queries:
        store.select(query)


def _as_nobody(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where it may read the file, and may not write beside it; root gives its rights up for it."""
    begin = "import os, sqlite3, sys\nif os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    command = [sys.executable, "-c", begin + textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


_COUNT = """
    try:
        open(sys.argv[1] + ".probe", "w")
    except OSError:
        print(sqlite3.connect(f"file:{sys.argv[1]}?{sys.argv[2]}", uri=True).execute("SELECT count(*) FROM v_jobs").fetchone()[0])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can read, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def _read_only(folder: Path) -> Generator[None, None, None]:
    for each in folder.iterdir():
        each.chmod(0o444)
    folder.chmod(0o555)
    yield
    folder.chmod(0o755)


async def test_a_reader_without_permission_to_write_reads_beside_a_projector(
    log: MemoryLog, folder: Path
) -> None:
    path = folder / "p"
    with Projector(log, path) as projector:
        await projector.catch_up()
        with _read_only(folder):
            ran = _as_nobody(_COUNT, str(path), "mode=ro")
    assert (ran.stdout.strip(), ran.stderr) == ("6", "")


async def test_a_reader_without_permission_to_write_reads_a_file_at_rest(
    log: MemoryLog, folder: Path
) -> None:
    path = folder / "p"
    await finish(log, path)
    with _read_only(folder):
        refused = _as_nobody(_COUNT, str(path), "mode=ro")
        read = _as_nobody(_COUNT, str(path), "mode=ro&immutable=1")
    assert "unable to open database file" in refused.stderr or "readonly" in refused.stderr
    assert (read.stdout.strip(), read.stderr) == ("6", "")


async def test_a_copy_for_other_readers_holds_the_views(log: MemoryLog, tmp_path: Path) -> None:
    await finish(log, tmp_path / "p")
    with sqlite3.connect(tmp_path / "p") as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "copy"),))
    with sqlite3.connect(tmp_path / "copy") as connection:
        assert connection.execute("SELECT count(*) FROM v_jobs").fetchone() == (6,)
