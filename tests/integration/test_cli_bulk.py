"""`jobledger jobs cancel|retry|discard` and `queues purge` on many jobs: chosen, planned, done, refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.command_line import Answer, CommandLine

from jobledger.ledger import JobState, Ledger, task
from jobledger.ledger.model.commands import Claim, DeadLetter
from jobledger.ledger.model.events import ErrorInfo

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


@task(queue="mail", max_attempts=3)
async def send(number: int) -> None: ...


class Cli(CommandLine):
    """The command line on an environment of the test's own, in which jobs are in several states."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self._projection = folder / "projection.db"

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where, "--projection", str(self._projection))

    def fill(self) -> None:
        async def fill(ledger: Ledger) -> None:
            for number in range(3):
                await ledger.enqueue(send.options(id=f"waits-{number}"), number)
            await ledger.enqueue(send.options(id="later-0", delay_s=3600), 0)
            await ledger.enqueue(send.options(id="other-0", queue="other"), 0)
            runs = await ledger.enqueue(send.options(id="runs-0"), 0)
            await ledger.execute(runs.ref, Claim(worker="host-1-abcdef01", lease_s=15))
            dead = await ledger.enqueue(send.options(id="dead-0"), 0)
            error = ErrorInfo(kind="exception", type="ValueError", message="no address")
            await ledger.execute(dead.ref, DeadLetter(reason="rejected", error=error))

        self.with_ledger(fill)

    def states(self) -> dict[str, str]:
        return {line["id"]: line["status"] for line in self("jobs", "list", "--json").lines}


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(nats_server.url, tmp_path, capsys)
    made.fill()
    return made


def test_a_plan_shows_what_would_be_cancelled_and_changes_nothing(cli: Cli) -> None:
    before, events = cli.states(), len(cli("events", "tail", "--from", "1", "--json").lines)
    planned = cli("jobs", "cancel", "--queue", "mail", "--plan")
    assert planned.code == 0, planned.err
    assert "5 jobs would be cancelled; nothing was changed" in planned.out
    assert "1 of them runs, and ends when its worker receives the request" in planned.out
    assert (cli.states(), len(cli("events", "tail", "--from", "1", "--json").lines)) == (before, events)


def test_many_are_cancelled_only_with_yes_and_only_those_that_were_chosen(cli: Cli) -> None:
    asked = cli("jobs", "cancel", "--queue", "mail", "--state", "queued")
    assert (asked.code, asked.err) == (
        2,
        "jobledger: cancel 3 jobs: look at them with --plan, then repeat the command with --yes\n",
    )
    assert set(cli.states().values()) == {"queued", "scheduled", "running", "dead_lettered"}
    done = cli("jobs", "cancel", "--queue", "mail", "--state", "queued", "--reason", "too many", "--yes")
    assert (done.code, done.out) == (0, "3 jobs were cancelled\n"), done.err
    assert [job for job, state in cli.states().items() if state == "cancelled"] == [
        "waits-2",
        "waits-1",
        "waits-0",
    ]
    acts = cli("audit", "who", "--json").lines
    assert {(line["act"], line["reason"]) for line in acts} == {("cancel", "too many")}
    assert len(acts) == 3
    listed = cli("audit", "who")
    (line,) = [each for each in listed.out.splitlines() if "cancel" in each]
    assert "cancel   3 jobs of queue mail by " in line
    assert line.endswith(": too many")
    assert listed.err == "what was done to many jobs at once is one line; --each shows it job by job\n"
    each = cli("audit", "who", "--each")
    assert [line.split()[3] for line in each.out.splitlines()[:-1]] == [f"mail/{act['job']}" for act in acts]
    none = cli("jobs", "cancel", "--queue", "mail", "--state", "queued", "--yes")
    assert (none.code, none.out) == (0, "no jobs match\n")


def test_a_purge_cancels_what_waits_and_leaves_what_runs(cli: Cli) -> None:
    done = cli("queues", "purge", "mail", "--yes", "--json")
    assert done.code == 0, done.err
    assert {line["id"]: line["result"] for line in done.lines} == {
        "waits-0": "done",
        "waits-1": "done",
        "waits-2": "done",
        "later-0": "done",
    }
    states = cli.states()
    assert (states["runs-0"], states["dead-0"], states["other-0"]) == ("running", "dead_lettered", "queued")


def test_one_that_ended_meanwhile_is_refused_and_the_others_are_done(cli: Cli) -> None:
    assert cli("jobs", "cancel", "waits-0").code == 0
    done = cli("jobs", "cancel", "waits-0", "waits-1", "runs-0")
    assert done.code == 1
    assert "2 jobs were cancelled" in done.out
    assert "1 refused: their states do not allow it" in done.out
    assert "1 of them run" in done.out
    assert (cli.states()["waits-1"], cli.states()["runs-0"]) == ("cancelled", "running")


def test_retries_are_chosen_by_their_state(cli: Cli) -> None:
    assert cli("jobs", "retry", "--queue", "mail", "--yes").out == "no jobs match\n"
    later = cli("jobs", "retry", "--queue", "mail", "--state", "scheduled", "--yes")
    assert (later.code, later.out) == (0, "job later-0 is queued\n"), later.err
    dead = cli("jobs", "retry", "--all", "--state", "dead_lettered", "--yes")
    assert (dead.code, dead.out) == (0, "job dead-0 is queued\n"), dead.err
    states = cli.states()
    assert (states["later-0"], states["dead-0"]) == (JobState.QUEUED.value, JobState.QUEUED.value)


def test_dead_letters_are_discarded_by_when_they_were_enqueued(cli: Cli) -> None:
    assert cli("jobs", "discard", "--older-than", "1h", "--yes").out == "no jobs match\n"
    done = cli("jobs", "discard", "--since", "1h", "--yes")
    assert (done.code, done.out) == (0, "job dead-0 is discarded\n"), done.err
    assert cli.states()["dead-0"] == "discarded"


def test_a_search_lists_and_chooses(cli: Cli) -> None:
    def listed(*words: str) -> list[str]:
        return [line["id"] for line in cli("jobs", "list", *words, "--json").lines]

    assert listed("state:queued queue:mail") == ["waits-2", "waits-1", "waits-0"]
    assert listed("state:open", "number=1", "since:1h") == ["waits-1"]
    assert listed("waits") == ["waits-2", "waits-1", "waits-0"]  # the beginning of an id
    assert listed("error:ValueError", "--state", "dead_lettered") == listed("address") == ["dead-0"]
    counted = cli("jobs", "list", "state:dead", "--counts", "--json").lines[0]
    assert counted["by_state"]["dead_lettered"] == 1
    first = cli("jobs", "list", "queue:mail state:queued", "--limit", "1")
    _, next_page, _ = first.err.split("`")
    assert next_page.startswith("jobledger jobs list 'queue:mail state:queued' --")
    assert [line["id"] for line in cli("jobs", "list", *shlex.split(next_page)[3:], "--json").lines] == [
        "waits-1"
    ]
    none = cli("jobs", "list", "queue:mial")
    assert (none.code, none.out) == (0, "no jobs; children of runs are listed with --members\n")
    assert none.err == "no job has ever had the queue mial: did you mean queue:mail?\n"

    planned = cli("jobs", "cancel", "queue:mail number=2", "--plan", "--json")
    assert [line["id"] for line in planned.lines] == ["waits-2"]
    done = cli("jobs", "cancel", "state:open number=1", "--queue", "mail", "--yes")
    assert (done.code, done.out) == (0, "job waits-1 is cancelled\n"), done.err
    assert cli("jobs", "retry", "error:ValueError state:failing", "--yes").out == "job dead-0 is queued\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("jobs", "list", "stat:dead"), "there is no key stat: (did you mean state:?)"),
        (("jobs", "list", "queue:a", "--queue", "b"), "queue is given twice, as 'b' and as 'a'"),
        (("jobs", "cancel", "tennant:acme", "--yes"), "there is no key tennant: (did you mean tenant:?)"),
        (("jobs", "cancel", "waits-0", "queue:mail"), "name jobs by their ids or choose them by options"),
        (("jobs", "cancel", "state:dead", "--yes"), "state:dead_lettered: such jobs are left as they are"),
        (("jobs", "cancel"), "choose jobs: by id, by a search, by --queue"),
        (
            ("jobs", "cancel", "waits-0", "--all"),
            "name jobs by their ids or choose them by options, not both",
        ),
        (("jobs", "cancel", "--state", "completed"), "--state completed: such jobs are left as they are"),
        (("jobs", "retry", "--state", "queued"), "--state queued: such jobs are left as they are"),
        (("jobs", "cancel", "--older-than", "soon"), "--older-than 'soon' is not a time span"),
        (("queues", "purge", "a.b"), "queue 'a.b' is not valid"),
    ],
)
def test_what_chooses_nothing_or_too_much_is_refused(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    before: Any = cli.states()
    refused = cli(*words)
    assert (refused.code, sentence in refused.err) == (2, True), refused.err
    assert cli.states() == before
