"""`jobledger unique show`, `jobs show --why` of a unique job, and `jobs reschedule`, on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.working import bury

from jobledger.ledger import JobState, Ledger, Unique, UniqueKeyTakenError, task
from jobledger.ledger.model.commands import CancelJob

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


@task(queue="reports", unique=Unique(args=("user",)), max_attempts=1)
async def report(user: int, page: int = 1) -> None: ...


class Cli(CommandLine):
    """The command line on an environment of the test's own, with a projection of its own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self._rows = ("--projection", str(folder / "projection.db"))

    def __call__(self, *words: str) -> Answer:
        rows = self._rows if words[0] in ("jobs", "dlq", "audit") else ()
        return self.run(*words, *self.where, *rows)


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nats_server.url, tmp_path, capsys)


async def _fill(ledger: Ledger) -> None:
    await ledger.enqueue(report.options(id="r-1"), 1)
    await ledger.enqueue(report.options(id="r-2"), 2)
    await ledger.execute((await ledger.job("r-2")).ref, CancelJob())


def test_the_keys_of_a_task_are_shown_with_their_jobs(cli: Cli) -> None:
    cli.with_ledger(_fill)
    newest, first = cli("unique", "show", "report", "--json").lines
    assert (newest["job"], newest["status"], newest["held"]) == ("r-2", "cancelled", False)
    assert (first["job"], first["held"], first["until"], first["number"]) == ("r-1", True, "ended", 1)
    assert [line["job"] for line in cli("unique", "show", "report", "user=1", "--json").lines] == ["r-1"]
    assert [line["job"] for line in cli("unique", "show", "report", "--limit", "1", "--json").lines] == [
        "r-2"
    ]


def test_the_table_of_keys_is_read_on_eighty_columns(cli: Cli) -> None:
    async def fill(ledger: Ledger) -> None:
        await ledger.enqueue(report.options(delay_s=60), 1)
        dead = await ledger.enqueue(report, 20_000)
        await bury(ledger, dead)
        await ledger.enqueue(report.options(unique=Unique(args=(), for_s=3600, sliding=True)), 1)

    cli.with_ledger(fill)
    table = cli("unique", "show", "report").out
    assert max(map(len, table.splitlines())) <= 80, table
    for words in ("user=1", "the task", "yes", "dead lettered", "no", "60 min", "scheduled"):
        assert words in table, table


def test_the_owner_is_named_whole(cli: Cli) -> None:
    owner = "o" * 64

    async def fill(ledger: Ledger) -> None:
        await ledger.enqueue(report.options(id=owner), 1)

    cli.with_ledger(fill)
    assert owner in cli("unique", "show", "report").out


def test_keys_that_are_not_there_are_told(cli: Cli) -> None:
    cli.with_ledger(_fill)
    none = cli("unique", "show", "report", "user=3")
    assert none.out == "no job of task report has taken a key with user=3\n"
    assert "it is part of the job's id: `jobledger jobs list --task report`" in none.err
    bad = cli("unique", "show", "a.b")
    assert (bad.code, "task name 'a.b' is not valid" in bad.err) == (2, True)
    assert "'user' is not an argument of the form key=value" in cli("unique", "show", "report", "user").err


def test_why_tells_who_holds_the_key(cli: Cli) -> None:
    cli.with_ledger(_fill)
    assert "it holds its key until it has ended: no other one of its kind is made" in " ".join(
        cli("jobs", "show", "--why", "r-1").out.split()
    )
    assert cli("jobs", "show", "--why", "r-2", "--json").lines[0]["unique"].startswith("no job holds its key")

    async def another(ledger: Ledger) -> None:
        await ledger.enqueue(report.options(id="r-3"), 2)

    cli.with_ledger(another)
    why = cli("jobs", "show", "--why", "r-2", "--json").lines[0]["unique"]
    assert why == "job r-3 in queue reports holds its key until it has ended"


def test_a_dead_letter_whose_key_is_taken_is_refused_and_the_others_are_requeued(cli: Cli) -> None:
    async def fill(ledger: Ledger) -> None:
        for number in (1, 2):
            await bury(ledger, await ledger.enqueue(report.options(id=f"dead-{number}"), number))
        await ledger.enqueue(report.options(id="alive"), 1)
        with pytest.raises(UniqueKeyTakenError):
            await ledger.retry("dead-1")

    cli.with_ledger(fill)
    planned = cli("dlq", "requeue", "--queue", "reports", "--plan", "--json")
    assert {line["id"]: line["result"] for line in planned.lines} == {
        "dead-1": "refused",
        "dead-2": "planned",
    }
    done = cli("dlq", "requeue", "--queue", "reports", "--yes", "--json")
    assert done.code == 1
    found = {line["id"]: line for line in done.lines}
    assert (found["dead-1"]["result"], found["dead-2"]["result"]) == ("refused", "done")
    assert "job alive in queue reports has the unique key" in found["dead-1"]["message"]
    alone = cli("jobs", "retry", "dead-1")
    assert (alone.code, "job alive in queue reports" in alone.err) == (4, True)


def _later(count: int) -> object:
    async def fill(ledger: Ledger) -> None:
        for number in range(count):
            await ledger.enqueue(report.options(id=f"later-{number}", delay_s=3600), number)
        await ledger.enqueue(report.options(id="waits"), 99)

    return fill


def test_a_job_is_given_another_time_and_the_acts_tell_who_did(cli: Cli) -> None:
    cli.with_ledger(_later(1))  # type: ignore[arg-type]
    done = cli("jobs", "reschedule", "later-0", "--at", "2030-01-01T08:00:00Z", "--reason", "the fair")
    assert (done.code, done.out) == (0, "job later-0 is rescheduled to 2030-01-01 08:00:00.000Z\n"), done.err
    assert "not due before 2030-01-01 08:00:00.000Z" in " ".join(
        cli("jobs", "show", "--why", "later-0").out.split()
    )
    (act,) = cli("audit", "who", "--json").lines
    assert (act["act"], act["reason"]) == ("reschedule", "the fair")
    sooner = cli("jobs", "reschedule", "later-0", "--in", "5m", "--json").lines
    assert (sooner[0]["action"], sooner[0]["result"]) == ("reschedule", "done")
    refused = cli("jobs", "reschedule", "waits", "--in", "5m")
    assert (refused.code, refused.err) == (4, "jobledger: job waits is queued: it cannot be rescheduled\n")


def test_many_are_rescheduled_after_a_plan(cli: Cli) -> None:
    cli.with_ledger(_later(3))  # type: ignore[arg-type]
    planned = cli("jobs", "reschedule", "--queue", "reports", "--at", "2030-01-01", "--plan")
    assert "3 jobs would be rescheduled to 2030-01-01 00:00:00.000Z; nothing was changed" in planned.out
    asked = cli("jobs", "reschedule", "--queue", "reports", "--at", "2030-01-01")
    assert (asked.code, "reschedule 3 jobs to 2030-01-01" in asked.err) == (2, True)
    done = cli("jobs", "reschedule", "--queue", "reports", "--at", "2030-01-01", "--yes")
    assert done.out == "3 jobs were rescheduled to 2030-01-01 00:00:00.000Z\n"
    for words, sentence in (
        ((), "--at TIME or --in SPAN, one of the two"),
        (("--at", "2030-01-01", "--in", "5m"), "one of the two"),
        (("--at", "soon"), "'soon' is not a time"),
        (("--in", "-5m"), "-5m"),
        (("--in", "3661d"), "Invalid value for '--in': '3661d' is more than 3,660 days"),
        (("--in", "5m", "--state", JobState.PAUSED.value), "give one of scheduled, retry_wait"),
    ):
        refused = cli("jobs", "reschedule", "later-0" if "--state" not in words else "--all", *words)
        assert (refused.code, sentence in refused.err) == (2, True), refused.err
