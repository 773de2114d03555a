"""`enqueue --delay` and `--at`, `timers status` and `timers rebuild`, run in this process against a real server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.tables import each_row

from jobledger.cli.main import run

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

TASKS = """
from jobledger.ledger import task

@task(queue="math")
async def add(a: int, b: int = 1) -> int:
    return a + b
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    app = tmp_path / "tasks_of_test_timers_cli.py"
    app.write_text(TASKS, encoding="utf-8")
    where = ["--url", nats_server.url, "--environment", f"t_{secrets.token_hex(6)}"]

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        # The ledger is made by the first command: smaller than by default, for the quota is shared.
        more = ["--app", str(app), "--ledger-bytes-max", str(16 << 20)] if words[0] == "enqueue" else []
        code = run([*words, *where, *more])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def answer(found: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = found
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def test_delayed_jobs_are_scheduled_and_their_timers_set_again_on_demand(cli: Cli) -> None:
    job = answer(cli("enqueue", "add", "a=1", "--delay", "3600", "--json"))
    assert job["created"] is True
    at = answer(cli("enqueue", "add", "a=2", "--at", "2090-01-31T08:00:00Z", "--json"))
    past = answer(cli("enqueue", "add", "a=3", "--at", "2020-01-31", "--json"))
    states = [
        answer(cli("jobs", "show", each["id"], "--json", "--queue", "math"))["status"]
        for each in (job, at, past)
    ]
    assert states == ["scheduled", "scheduled", "queued"]

    before = answer(cli("timers", "status", "--json"))
    assert before == {
        "timers_set": 0,
        "fired": 0,
        "next_due_at": None,
        "next_is_exact": True,
        "unset_events": None,
    }
    assert answer(cli("timers", "rebuild", "--json")) == {"waits": 2, "set": 2}
    after = answer(cli("timers", "status", "--json"))
    assert (after["timers_set"], after["fired"]) == (2, 0)
    code, out, _ = cli("timers", "status")
    assert code == 0
    assert "in 60 min" in out
    assert "no worker has set any" in out
    code, out, _ = cli("timers", "rebuild")
    assert (code, "2 timers are set; of the 2 waits in the ledger" in out) == (0, True)


@each_row(
    ("words", "told"),
    [
        (["--delay", "1", "--at", "2090-01-01"], "--delay or --at, not both"),
        (["--delay", "-1"], "--delay"),
        (["--delay", "nan"], "--delay"),
        (["--delay", "1e12"], "neither a number of seconds nor a time span"),
        (["--at", "tomorrow"], "--at 'tomorrow' is not a time such as"),
        (["--at", "9999-01-01"], "is not a time from 1970 to 2261"),
    ],
)
def test_a_moment_that_is_none_is_a_usage_error(cli: Cli, words: list[str], told: str) -> None:
    code, out, err = cli("enqueue", "add", "a=1", *words)
    assert (code, out) == (2, "")
    assert told in err
