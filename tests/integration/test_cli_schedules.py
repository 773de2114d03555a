"""`jobledger schedules`: declare, list, show, pause, trigger, backfill, reset, remove and prune, against a real server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.support.command_line import Answer, CommandLine
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import JobRef, Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.schedules.decisions import Declare, Tick, decide
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.schedules.verbs import definition_of

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

TASKS = """
from jobledger.ledger import task

@task(queue="reports", max_attempts=3)
async def report(kind: str = "daily") -> str:
    return kind
"""


class Schedules(CommandLine):
    """The commands on schedules, with a projection of the test's own."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(url, capsys)
        self.make_ledger()
        self._projection = folder / "rows.db"

    def __call__(self, verb: str, *words: str) -> Answer:
        rows = ("--projection", str(self._projection)) if verb in {"list", "show", "prune"} else ()
        return self.run("schedules", verb, *words, *self.where, *rows)

    def told(self, verb: str, *words: str) -> list[dict[str, Any]]:
        answer = self(verb, *words, "--json")
        assert answer.code == 0, answer.err
        return answer.lines

    def schedule(self, name: str = "nightly") -> Schedule:
        async def read(ledger: Ledger) -> Schedule:
            return await ledger.schedules.get(name)

        return self.with_ledger(read)

    def does(self, function: Callable[[Ledger], Awaitable[object]]) -> None:
        self.with_ledger(function)


@pytest.fixture
def schedules(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Schedules:
    return Schedules(nats_server.url, capsys, tmp_path)


NIGHTLY = ("nightly", "--task", "report", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin")


def test_a_schedule_is_declared_and_its_next_runs_follow_from_it(schedules: Schedules) -> None:
    answer = schedules("add", *NIGHTLY)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("schedule nightly: report 30 2 * * * in Europe/Berlin; next run 20")
    (told,) = schedules.told("next", "nightly", "--count", "3")
    assert (told["status"], told["timezone"]) == ("active", "Europe/Berlin")
    found = [datetime.fromisoformat(each) for each in told["items"]]
    assert found[0] > datetime.now(UTC)
    assert [later - earlier for earlier, later in itertools.pairwise(found)] >= [timedelta(hours=23)] * 2
    assert all(at.minute == 30 and at.hour in {0, 1} for at in found)
    shown = schedules("next", "nightly", "--count", "2").out.splitlines()
    assert all(
        re.fullmatch(r"20\S+ \S+Z   \S+ 02:30:00\+0[12]00 Europe/Berlin   in .+", line) for line in shown
    )
    definition = schedules.schedule().definition
    assert (definition.queue, definition.order.max_attempts, definition.source) == ("default", 5, "operator")


def test_a_name_that_does_something_else_is_refused_unless_it_is_to_be_replaced(schedules: Schedules) -> None:
    unknown = schedules("add", *NIGHTLY)
    assert unknown.code == 0
    assert "no worker has ever had a task report: its jobs go to queue default" in unknown.err
    before = schedules.schedule()
    assert schedules("add", *NIGHTLY).code == 0  # the same once more
    other = (*NIGHTLY[:4], "30 3 * * *", *NIGHTLY[5:])
    refused = schedules("add", *other)
    assert refused.code == 4
    assert "exists and does something else" in refused.err
    assert "--replace" in refused.err
    assert schedules.schedule() == before
    assert schedules("add", *other, "--replace").code == 0
    assert schedules.schedule().definition.spec.cron == "30 3 * * *"


def test_a_schedule_on_demand_makes_a_job_each_time_it_is_triggered(schedules: Schedules) -> None:
    answer = schedules("add", "import", "--task", "report", "--on-demand")
    assert answer.out == "schedule import: report on demand; no run is to come\n"
    assert schedules("next", "import").out == "schedule import makes jobs on demand only: no run is to come\n"
    made = [schedules.told("trigger", "import")[0]["id"] for _ in range(2)]
    assert made[0] != made[1]
    (row,) = schedules.told("list")
    assert (row["status"], row["next_run_at"], row["run_count"]) == ("active", None, 0)
    assert re.search(r"import +active +- +- +on demand", schedules("list").out)


def test_with_the_tasks_code_its_options_hold_and_the_input_is_checked(
    schedules: Schedules, tmp_path: Path
) -> None:
    app = tmp_path / "tasks_of_test_cli_schedules.py"
    app.write_text(TASKS, encoding="utf-8")
    add = ("hourly", "--task", "report", "--every", "1h", "--app", str(app))
    wrong = schedules("add", *add, "--input", '{"sort": "daily"}')
    assert (wrong.code, "sort" in wrong.err) == (2, True)
    assert schedules("add", *add, "--input", '{"kind": "weekly"}', "--priority", "high").code == 0
    definition = schedules.schedule("hourly").definition
    assert (definition.queue, definition.order.max_attempts, definition.order.priority) == (
        "reports",
        3,
        "high",
    )
    assert bytes(definition.order.input) == b'{"kind":"weekly"}'


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cron", "0 0 31 2 *"), "never ticks"),
        (("--cron", "* * * * * *"), "give five"),
        (("--cron", "* * * * *", "--timezone", "Mars/Olympus"), "no time zone"),
        (("--every", "0.5"), "less than 1 s"),
        (("--every", "1.5"), "whole seconds"),
        (
            ("--every", "10", "--cron", "* * * * *"),
            "give one of cron, every_s, at, on_demand, not cron and every_s",
        ),
        ((), "give one of cron, every_s, at, on_demand"),
        (("--at", "2020-01-01"), "would never tick"),
        (("--every", "1h", "--ends-at", "2020-01-01"), "would never tick"),
        (("--every", "10", "--timezone", "Europe/Berlin"), "belongs to a cron expression"),
        (("--every", "10", "--input", "[1]"), "JSON object"),
        (("--every", "10", "--max-attempts", "0"), "'--max-attempts'"),
        (("--every", "10", "--timeout", "900000000"), "'--timeout': '900000000' is more than 7 days"),
        (("--every", "10", "--timeout", "0"), "'--timeout': '0' is less than"),
        (("--every", "999d"), "'--every': '999d' is more than 366 days"),
        (("--every", "10", "--jitter", "999d"), "'--jitter': '999d' is more than 366 days"),
        (("--every", "10", "--overlap", "queue"), "'skip', 'allow'"),
    ],
)
def test_what_cannot_tick_is_refused_with_a_sentence(
    schedules: Schedules, words: tuple[str, ...], sentence: str
) -> None:
    answer = schedules("add", "odd", "--task", "report", *words)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert schedules("next", "odd").code == 3


def test_a_schedule_carries_the_whole_work_order(schedules: Schedules) -> None:
    options = (
        "--priority",
        "low",
        "--max-attempts",
        "7",
        "--timeout",
        "60",
        "--queue",
        "bills",
        "--tenant",
        "acme",
    )
    more = (
        "--correlation",
        "year-end",
        "--metadata",
        "region=eu",
        "--limit",
        "tenant:acme",
        "--limit",
        "global",
    )
    assert schedules("add", *NIGHTLY, *options, *more).code == 0
    (made,) = schedules.told("trigger", "nightly")

    async def order(ledger: Ledger) -> None:
        job = await (await ledger.job(JobRef(queue="bills", job_id=made["id"]))).snapshot()
        order = job.order
        assert (order.priority, order.max_attempts, order.timeout_s, order.tenant) == ("low", 7, 60.0, "acme")
        assert (order.correlation, order.metadata) == ("year-end", {"region": "eu"})
        assert (order.limits, job.state.value) == (("global", "tenant:acme"), "held")

    schedules.does(order)
    shown = schedules("show", "nightly").out
    assert all(
        words in shown for words in ("global, tenant:acme", "correlation  year-end", "metadata     region=eu")
    ), shown


def test_people_pause_resume_trigger_and_remove(schedules: Schedules) -> None:
    schedules("add", *NIGHTLY)
    assert schedules("pause", "nightly", "--reason", "audit").code == 0
    assert schedules("pause", "nightly").code == 4
    assert schedules.told("next", "nightly")[0]["items"] == []
    assert "is paused" in schedules("next", "nightly").out
    (listed,) = schedules.told("list")
    assert (listed["status"], listed["pause_reason"], listed["next_run_at"]) == ("paused", "audit", None)
    assert f"paused by {listed['paused_by']}" in schedules("list").out
    (first,), (second,) = (schedules.told("trigger", "nightly", "--reason", "now") for _ in range(2))
    assert first["id"] != second["id"]
    assert re.fullmatch(r"nightly-manual-\d+", first["id"])

    async def state(ledger: Ledger) -> None:
        job = await (await ledger.job(JobRef(queue=first["queue"], job_id=first["id"]))).snapshot()
        assert (job.task, job.state.value, job.order.tick) == ("report", "queued", first["id"])

    schedules.does(state)
    assert schedules("resume", "nightly").code == 0
    assert schedules("resume", "nightly").code == 4
    (listed,) = schedules.told("list")
    assert (listed["status"], listed["paused_by"]) == ("active", None)
    assert schedules("remove", "nightly", "--reason", "done").code == 0
    assert schedules("remove", "nightly").code == 3
    assert [schedules("show", "nightly").code, schedules.told("list")] == [3, []]
    (removed,) = schedules.told("list", "--removed")
    assert removed["status"] == "removed"
    assert schedules("add", *NIGHTLY).code == 0  # the name is free


def test_a_backfill_makes_the_jobs_of_past_ticks_once(schedules: Schedules) -> None:
    schedules("add", "hourly", "--task", "report", "--every", "3600")
    words = ("hourly", "--from", "2026-01-01T00:00Z", "--to", "2026-01-01T05:30Z")
    made = schedules.told("backfill", *words)
    assert [each["id"] for each in made] == [f"hourly-20260101T0{hour}0000Z" for hour in range(6)]
    assert schedules.told("backfill", *words) == made
    assert "6 ticks have their jobs: hourly-20260101T000000Z to" in schedules("backfill", *words).out
    jobs = schedules.run("jobs", "list", *schedules.where, "--json", "--queue", "default")
    assert len(jobs.lines) == 6
    assert [each["queue"] for each in schedules.told("backfill", "hourly", "--from", "2h")] == ["default"] * 2
    missing = schedules("backfill", "hourly", "--to", "2026-01-01")
    assert (missing.code, "`jobledger schedules backfill` needs --from" in missing.err) == (2, True)
    too_many = schedules("backfill", "hourly", "--from", "2020-01-01", "--to", "2025-01-01")
    assert (too_many.code, "more than 1,000" in too_many.err) == (2, True)
    ahead = schedules("backfill", "hourly", "--from", "2026-01-01", "--to", "2100-01-01")
    assert (ahead.code, "in the future" in ahead.err) == (2, True)


def test_a_schedule_is_shown_whole(schedules: Schedules) -> None:
    schedules(
        "add",
        *NIGHTLY,
        "--input",
        '{"kind": "weekly"}',
        "--jitter",
        "30s",
        "--catchup",
        "all",
        "--timeout",
        "60",
    )
    out = schedules("show", "nightly").out
    for words in (
        "30 2 * * * in Europe/Berlin",
        '{"kind":"weekly"}',
        "up to 30 s",
        "all of the last 86,400 s",
        "0 of 0",
    ):
        assert words in out, out
    (shown,) = schedules.told("show", "nightly")
    assert (shown["name"], shown["last_failure"], shown["in_code"]) == ("nightly", None, "unknown")
    assert shown["definition"]["spec"] == {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert schedules("show", "other").code == 3


def test_ticks_that_made_no_job_are_counted_and_shown_and_the_list_fits_a_terminal(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "report-of-the-night"
    zone = "America/Los_Angeles"
    schedules("add", name, "--task", "report", "--cron", "*/10 9-17 * * mon-fri", "--timezone", zone)

    async def tick(ledger: Ledger) -> None:
        await ledger.schedules.act(name, Tick())
        for _ in range(2):
            await ledger.schedules.act(name, Tick(ended=False))

    schedules.does(tick)
    (told,) = schedules.told("show", name)
    counts = [told[f"{what}_count"] for what in ("tick", "run", "skipped", "missed")]
    assert counts == [3, 1, 2, 0]
    assert told["last_skipped_at"] == told["last_tick_at"] > told["last_run_at"]
    (ticked,) = told["ticks"]
    assert (ticked["tick"], ticked["job"]) == (told["last_run_at"], told["last_job"])
    assert (ticked["status"], ticked["error_type"]) == ("queued", None)
    assert ticked["late_s"] >= 0
    shown = " ".join(schedules("show", name).out.split())
    assert f"queued {told['last_job']}" in shown
    assert f"no job 2 skipped, the last job had not ended; newest {told['last_skipped_at'][:10]}" in shown
    on_a_terminal(monkeypatch)
    lines = unstyled(schedules("list").out)
    assert any(zone in line for line in lines), lines
    assert any("active" in line for line in lines), lines
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_doctor_names_schedules_that_are_late(schedules: Schedules, tmp_path: Path) -> None:
    def doctor() -> list[dict[str, Any]]:
        answer = schedules.run(
            "doctor", *schedules.where, "--json", "--projection", str(tmp_path / "rows.db")
        )
        return [each for each in answer.lines[0]["diagnoses"] if each["kind"] == "schedule_late"]

    schedules("add", *NIGHTLY)
    schedules("list")
    assert doctor() == []

    async def declare_long_ago(ledger: Ledger) -> None:
        like = Enqueue(ref=JobRef(queue="q", job_id="x"), task="report")
        command = Declare(definition=definition_of(like, every_s=3600))
        event = decide("old", None, command, Stamp(at=datetime.now(UTC) - timedelta(hours=2), by="test"))
        assert event is not None
        await ledger.log.append(SCHEDULE.link(ledger.names, [event], View[Any]()))

    schedules.does(declare_long_ago)
    schedules("list")
    (found,) = doctor()
    assert (found["object"], found["found"].startswith("its tick is late by ")) == ("schedule old", True)
    assert [each["name"] for each in schedules.told("list") if each["is_late"]] == ["old"]

    async def remove(ledger: Ledger) -> None:
        await ledger.schedules.remove("old")

    schedules.does(remove)  # the projection does not know of it yet
    assert doctor() == []


def test_prune_removes_what_no_running_workers_code_has(schedules: Schedules) -> None:
    async def declare(ledger: Ledger) -> None:
        like = Enqueue(ref=JobRef(queue="q", job_id="x"), task="report")
        for name in ("kept", "gone"):
            definition = definition_of(like, every_s=3600)
            as_code = replace(definition, source="code", code_version="1")
            await ledger.schedules.act(name, Declare(definition=as_code))

    schedules.does(declare)
    schedules("add", "mine", "--task", "report", "--every", "60")
    assert schedules.told("prune", "--yes") == []  # no worker runs, so nothing can be told

    async def with_a_worker(ledger: Ledger) -> None:
        keeper = LeaseKeeper(
            ledger.leases,
            ledger.clock,
            ("q",),
            running=lambda: 0,
            on_lost=lambda _: None,
            schedules={"kept": "1"},
        )
        await keeper.open()

    schedules.does(with_a_worker)
    assert {each["name"]: each["in_code"] for each in schedules.told("list")} == {
        "kept": "yes",
        "gone": "no",
        "mine": "unknown",
    }
    assert "in no running worker's code" in schedules("list").out
    assert schedules.told("prune", "--plan") == [{"name": "gone", "result": "planned"}]
    assert schedules("prune").code == 2  # a program says --yes
    assert schedules.told("prune", "--yes") == [{"name": "gone", "result": "done"}]
    assert [each["name"] for each in schedules.told("list")] == ["kept", "mine"]


def test_the_codes_declaration_counts_again_after_a_reset(schedules: Schedules) -> None:
    async def declare(ledger: Ledger) -> None:
        like = Enqueue(ref=JobRef(queue="q", job_id="x"), task="report")
        as_code = replace(definition_of(like, every_s=3600), source="code", code_version="1")
        await ledger.schedules.act("nightly", Declare(definition=as_code))

    schedules.does(declare)
    assert schedules("add", *NIGHTLY, "--replace").code == 0
    schedules.does(declare)
    assert schedules.schedule().definition.spec.cron == "30 2 * * *"
    (told,) = schedules.told("reset", "nightly")
    assert (told["source"], told["removed"]) == ("code", False)
    assert schedules.schedule().definition.spec.cron == "30 2 * * *"  # as it was, until code declares it
    schedules.does(declare)
    assert schedules.schedule().definition.spec.every_s == 3600
    assert schedules("reset", "other").code == 3
