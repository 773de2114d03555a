"""`jobledger dlq` against a real server: lists, groups, plans that change nothing, edits, many at once, refusals."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.working import LIMIT_S, working

from jobledger.ledger import Job, JobState, Ledger, sync, task
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import DeadLetter
from jobledger.ledger.model.errors import IllegalTransitionError, InvalidInputError, UnknownTaskError
from jobledger.ledger.model.events import ErrorInfo, Queued
from jobledger.ledger.tasks import TaskRegistry

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


TASKS = """
from jobledger.ledger import task

@task(queue="billing", max_attempts=1)
async def charge(customer: str, cents: int) -> str:
    return f"charged {customer} {cents} cents"

@task(queue="mail", max_attempts=1)
async def send(text: str) -> None: ...
"""


@task(queue="billing", max_attempts=1)
async def charge(customer: str, cents: int) -> str:
    return f"charged {customer} {cents} cents"


@task(queue="mail", max_attempts=1)
async def send(text: str) -> None: ...


class Cli(CommandLine):
    """`jobledger dlq` on an environment of the test's own, in which some jobs are dead letters."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.app = folder / "tasks_of_test_dlq.py"
        self.app.write_text(TASKS, encoding="utf-8")
        self._projection = folder / "projection.db"

    def __call__(self, *words: str) -> Answer:
        return self.run("dlq", *words, *self.where, "--projection", str(self._projection))

    def make(self, job_id: str, error: str = "no money", *, cents: int = -1, queue: str = "billing") -> None:
        async def make(ledger: Ledger) -> None:
            options = {"id": job_id, "queue": queue}
            if queue == "mail":
                job: Any = await ledger.enqueue(send.options(**options), text=job_id)  # type: ignore[arg-type]
            else:
                job = await ledger.enqueue(charge.options(**options), customer=job_id, cents=cents)  # type: ignore[arg-type]
            info = ErrorInfo(kind="exception", type="ValueError", message=error)
            await ledger.execute(job.ref, DeadLetter(reason="rejected", error=info))

        self.with_ledger(make)

    def history(self, job_id: str) -> list[StoredEvent]:
        async def read(ledger: Ledger) -> list[StoredEvent]:
            return await (await ledger.job(job_id)).history()

        return self.with_ledger(read)

    def head(self) -> int:
        async def read(ledger: Ledger) -> int:
            return (await ledger.log.head()).last_sequence

        return self.with_ledger(read)

    def job(self, job_id: str) -> Job:
        async def read(ledger: Ledger) -> Job:
            return await (await ledger.job(job_id)).snapshot()

        return self.with_ledger(read)

    def work(self, *job_ids: str) -> list[Any]:
        """Let a worker run until these jobs have results."""

        async def work(ledger: Ledger) -> list[Any]:
            async with working(ledger, charge, send, reactors=False):
                return [await (await ledger.job(each)).result(timeout_s=LIMIT_S) for each in job_ids]

        return self.with_ledger(work)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("URL", "ENVIRONMENT", "APP", "PROJECTION", "DEBUG"):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    made = Cli(nats_server.url, tmp_path, capsys)
    made.with_ledger(_nothing)
    return made


async def _nothing(_: Ledger) -> None:
    """Make the streams, small ones."""


@pytest.fixture
def four(cli: Cli) -> Cli:
    """Three of one error and one of another."""
    for number in range(3):
        cli.make(f"charge-{number}", f"cannot charge 'c{number}' {number} cents", cents=-number)
    cli.make("mail-0", "no such address", queue="mail")
    return cli


def test_without_dead_letters_the_list_is_empty(cli: Cli) -> None:
    assert cli("list").out == "no dead letters\n"
    assert cli("list", "--json").out == cli("list", "--group", "--json").out == ""
    assert cli("requeue", "--all", "--yes").out == "no dead letters match\n"


def test_the_list_is_filtered_and_grouped(four: Cli) -> None:
    rows = four("list", "--json").lines
    assert [row["job_id"] for row in rows] == ["mail-0", "charge-2", "charge-1", "charge-0"]
    billing = {row["fingerprint"] for row in rows[1:]}
    assert len(billing) == 1
    assert rows[0]["fingerprint"] not in billing
    (shared,) = billing
    for words, found in [
        (["--queue", "mail"], ["mail-0"]),
        (["--task", "charge"], ["charge-2", "charge-1", "charge-0"]),
        (["--fingerprint", shared[:6], "--limit", "2"], ["charge-2", "charge-1"]),
        (["--dead-reason", "exhausted"], []),
        (["queue:mail since:1h"], ["mail-0"]),
        (["error:ValueError", "cents=-1"], ["charge-1"]),
        (["--queue", "billing", f"cause:{shared[:6]} id:charge-2"], ["charge-2"]),
        (["address"], ["mail-0"]),
        (["until:1h"], []),
        (["state:queued"], []),
        (["--since", "2001-01-01", "--dead-reason", "rejected", "--queue", "mail"], ["mail-0"]),
        (["--older-than", "1h"], []),
        (["--older-than", "0s"], ["mail-0", "charge-2", "charge-1", "charge-0"]),
    ]:
        assert [row["job_id"] for row in four("list", "--json", *words).lines] == found
    groups = four("list", "--group", "--json").lines
    assert [(group["count"], group["fingerprint"]) for group in groups] == [
        (3, shared),
        (1, rows[0]["fingerprint"]),
    ]
    assert groups[0]["job_id"] == "charge-2"
    assert groups[0]["oldest"] == rows[-1]["dead_at"]
    table = four("list").out
    assert "rejected: cannot charge 'c2' 2 cents" in table
    assert shared[:8] in table
    assert "4 dead letters" in four("list", "--group").err


def test_one_is_shown_with_its_fingerprint_and_another_job_is_refused(four: Cli) -> None:
    shown = four("show", "charge-1", "--json").lines[0]
    assert (shown["id"], shown["dead_reason"], shown["input"]["cents"]) == ("charge-1", "rejected", -1)
    assert shown["fingerprint"] in four("show", "charge-1").out
    assert four("requeue", "charge-1").code == 0
    answer = four("show", "charge-1")
    assert (answer.code, "job charge-1 is queued and not a dead letter" in answer.err) == (4, True)
    assert four("show", "nope").code == 3


PLANS = [
    ["requeue", "--all", "--plan"],
    ["requeue", "charge-0", "--plan"],
    ["requeue", "--task", "charge", "cents=7", "--plan"],
    ["requeue", "--task", "charge", "--input", '{"customer": "x", "cents": 1}', "--attempts", "9", "--plan"],
    ["discard", "--queue", "mail", "--plan"],
    ["discard", "charge-0", "mail-0", "--plan"],
]


def test_a_search_chooses_which_are_requeued_and_discarded(four: Cli) -> None:
    planned = four("requeue", "queue:billing cents=-2", "cents=5", "--plan", "--json")
    assert [(line["id"], line["input"]["cents"]) for line in planned.lines] == [("charge-2", 5)], planned.err
    done = four("discard", "queue:mail", "--yes")
    assert (done.code, done.out) == (0, "job mail-0 is discarded\n"), done.err
    refused = four("requeue", "queue:billing", "charge-0", "--yes")
    assert (refused.code, "name jobs by their ids or choose them by options" in refused.err) == (2, True)
    assert "there is no key stat:" in four("list", "stat:dead").err
    assert "did you mean queue:billing?" in four("list", "queue:biling").err


def test_a_plan_says_what_would_happen_and_changes_nothing(four: Cli) -> None:
    head = four.head()
    for words in PLANS:
        planned = four(*words, "--json")
        assert planned.code == 0, planned.err
        assert {row["result"] for row in planned.lines} == {"planned"}
        assert "nothing was changed" in " ".join(four(*words).out.split())
    assert four.head() == head
    edited = four("requeue", "--task", "charge", "cents=7", "--plan", "--json").lines
    assert [row["input"] for row in edited] == [{"customer": f"charge-{n}", "cents": 7} for n in range(3)]


def test_an_edited_input_runs_and_the_old_one_stays_in_the_chain(four: Cli) -> None:
    answer = four(
        "requeue", "charge-1", "cents=100", "--app", str(four.app), "--reason", "typo", "--attempts", "2"
    )
    assert (answer.code, answer.out) == (
        0,
        "job charge-1 is requeued with 2 more attempts, and a new input\n",
    )
    assert four.work("charge-1") == ["charged charge-1 100 cents"]
    first, _, requeued, *_ = (stored.event for stored in four.history("charge-1"))
    assert isinstance(first, Queued)
    assert isinstance(requeued, Queued)
    assert json.loads(bytes(first.input)) == {"customer": "charge-1", "cents": -1}
    assert json.loads(bytes(requeued.input)) == {"customer": "charge-1", "cents": 100}
    assert (requeued.cause, requeued.reason, requeued.max_attempts) == ("requeued", "typo", 2)
    job = four.job("charge-1")
    assert (job.state, job.order.max_attempts) == (JobState.COMPLETED, 2)


def test_all_of_one_error_are_requeued_at_once_and_nothing_else(four: Cli) -> None:
    shared = four("list", "--group", "--json").lines[0]["fingerprint"]
    answer = four("requeue", "--fingerprint", shared, "cents=5", "--priority", "high", "--yes", "--json")
    assert answer.code == 0, answer.err
    assert [(row["id"], row["result"]) for row in answer.lines] == [(f"charge-{n}", "done") for n in range(3)]
    assert four.work(*(f"charge-{n}" for n in range(3))) == [f"charged charge-{n} 5 cents" for n in range(3)]
    assert [row["job_id"] for row in four("list", "--json").lines] == ["mail-0"]


def test_a_whole_input_may_come_from_stdin(four: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"customer": "b", "cents": 3}')))
    assert four("requeue", "charge-0", "--input", "-").code == 0
    assert four.work("charge-0") == ["charged b 3 cents"]


def test_a_discarded_job_is_final_and_keeps_everything(four: Cli) -> None:
    assert (
        four("discard", "charge-0", "charge-2", "--reason", "test data").out
        == "2 dead letters were discarded\n"
    )
    assert [row["job_id"] for row in four("list", "--json").lines] == ["mail-0", "charge-1"]
    kinds = [json.loads(stored.data)["type"] for stored in four.history("charge-0")]
    assert kinds == ["queued", "dead_lettered", "discarded"]
    assert json.loads(four.history("charge-0")[-1].data)["reason"] == "test data"
    again = four("requeue", "charge-0")
    assert (again.code, again.err) == (4, "jobledger: job charge-0 is discarded: it cannot be requeued\n")


def test_one_that_cannot_be_done_keeps_nobody_from_the_others(four: Cli) -> None:
    answer = four("requeue", "--all", "cents=9", "--app", str(four.app), "--yes", "--json")
    assert answer.code == 1
    results = {row["id"]: row["result"] for row in answer.lines}
    assert results == {"charge-0": "done", "charge-1": "done", "charge-2": "done", "mail-0": "invalid"}
    assert "has no argument 'cents'" in next(row["message"] for row in answer.lines if row["id"] == "mail-0")
    assert four.job("mail-0").state is JobState.DEAD_LETTERED
    told = four("discard", "charge-0", "mail-0")
    assert told.code == 1
    assert "1 dead letter was discarded" in told.out
    assert "refused" in told.out


REFUSED: list[tuple[list[str], int, str]] = [
    (["requeue"], 2, "choose dead letters: by id"),
    (["discard", "--limit", "3"], 2, "choose dead letters: by id"),
    (["requeue", "cents=7"], 2, "choose dead letters: by id"),
    (["requeue", "charge-0", "--task", "charge"], 2, "not both"),
    (["requeue", "charge-0", "--all"], 2, "not both"),
    (["requeue", "charge-0", "cents=1", "--input", "{}"], 2, "not both"),
    (["requeue", "charge-0", "cents=1", "cents=2"], 2, "given twice"),
    (["requeue", "charge-0", "--input", "[1]"], 2, "must be a JSON object"),
    (["requeue", "charge-0", "--input", "{"], 2, "not valid JSON"),
    (["requeue", "charge-0", "--attempts", "0"], 2, "--attempts"),
    (["requeue", "charge-0", "--priority", "urgent"], 2, "--priority"),
    (
        ["requeue", "--all"],
        2,
        "requeue 4 dead letters with 1 more attempt: look at them with --plan, then repeat the command with --yes",
    ),
    (
        ["discard", "--all"],
        2,
        "discard 4 dead letters: look at them with --plan, then repeat the command with --yes",
    ),
    (["list", "--fingerprint", "xyz"], 2, "'xyz' is not one: up to 12 hex digits"),
    (["list", "--older-than", "soon"], 2, "'soon' is not a time span such as 90s"),
    (["list", "--older-than", "999999999w"], 2, "longer than anything was kept"),
    (["list", "--since", "yesterday"], 2, "is not a time such as"),
    (["list", "--dead-reason", "tired"], 2, "--dead-reason"),
    (["list", "--queue", "a.b"], 2, "queue 'a.b' is not valid"),
    (["requeue", "nope"], 3, "no job 'nope'"),
    (["requeue", "charge-"], 4, "'charge-' matches several jobs"),
]


def test_bad_requests_are_sentences_and_change_nothing(four: Cli) -> None:
    head = four.head()
    for words, code, sentence in REFUSED:
        answer = four(*words)
        assert (answer.code, sentence in answer.err) == (code, True), (words, answer)
    for words, sentence in [
        (["cents=x"], "argument cents='x' is not int"),
        (["dollars=1"], "has no argument 'dollars'"),
        (["--input", '{"customer": "c"}'], "missing required field `cents`"),
    ]:
        answer = four("requeue", "charge-0", *words, "--app", str(four.app))
        assert (answer.code, sentence in answer.err) == (2, True), (words, answer)
    assert four.head() == head


def test_what_is_older_than_a_span_is_what_died_before_it_began(four: Cli) -> None:
    assert four("discard", "--older-than", "1d", "--plan").out == "no dead letters match\n"


def test_the_page_behind_is_listed_by_the_cursor_that_was_told(four: Cli) -> None:
    for words, expected in (
        (("--older-than", "1ms"), ["mail-0", "charge-2", "charge-1", "charge-0"]),
        (("--since", "1 h ago", "--group"), ["3", "1"]),
    ):
        found: list[str] = []
        after: list[str] = []
        for _ in expected:
            shown = four("list", *words, "--limit", "1", *after)
            found += [line.split()[0] for line in shown.out.splitlines()[2:]]
            _, told, cursor = shown.err.partition("add `--after ")
            after = ["--after", cursor.split("`")[0]]
            assert bool(told) == (len(found) < len(expected))
        assert found == expected
    assert four("list", "--after", "none").code == 2


def test_the_api_does_the_same(four: Cli) -> None:
    async def act(ledger: Ledger) -> None:
        tasks = TaskRegistry([charge])
        with pytest.raises(InvalidInputError, match="cents"):
            await ledger.requeue("charge-0", edit={"cents": "many"}, tasks=tasks)
        with pytest.raises(UnknownTaskError, match="'send'"):
            await ledger.requeue("mail-0", input={"text": "x"}, tasks=tasks)
        with pytest.raises(InvalidInputError, match="not both"):
            await ledger.requeue("charge-0", input={}, edit={})
        with pytest.raises(InvalidInputError, match="attempts must be"):
            await ledger.requeue("charge-0", attempts=0)
        job = await ledger.requeue(
            "charge-0", edit={"cents": 8}, attempts=3, reason="api", by="ada", tasks=tasks
        )
        assert (job.state, job.attempts_left, json.loads(bytes(job.order.input))["cents"]) == (
            JobState.QUEUED,
            3,
            8,
        )
        large = "x" * 100_000
        job = await ledger.requeue("charge-1", edit={"customer": large})
        assert job.order.input_ref is not None
        assert json.loads(await ledger.inputs.get(job.order.input, job.order.input_ref, key="")) == {
            "customer": large,
            "cents": -1,
        }
        assert (await ledger.discard("mail-0", reason="no", by="ada")).state is JobState.DISCARDED
        with pytest.raises(IllegalTransitionError):
            await ledger.discard("mail-0")
        races = [ledger.requeue("charge-2", reason=str(n)) for n in range(5)]
        done = await asyncio.gather(*races, return_exceptions=True)
        assert sum(isinstance(each, Job) for each in done) == 1
        assert sum(isinstance(each, IllegalTransitionError) for each in done) == 4

    four.with_ledger(act)
    events = [stored.event for stored in four.history("charge-0")]
    assert events[-1].by == "ada"


def test_blocking_code_has_the_same_verbs(four: Cli) -> None:
    with sync.connect(four.url, environment=four.environment) as ledger:
        assert ledger.requeue("charge-0", edit={"cents": 1}).state is JobState.QUEUED
        assert ledger.discard("charge-1").state is JobState.DISCARDED
