"""`jobledger audit` against a real server: proofs, planted events, rewritten tails, stories, acts of people."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import nats
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.orders import enqueue_of
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled
from tests.support.working import LIMIT_S, working

from jobledger.cli.main import run
from jobledger.ledger import Backoff, Context, Ledger, Retry, task
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.codec import digest, encode
from jobledger.ledger.model.commands import CancelJob, Claim, DeadLetter, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import Completed
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import Projector

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

WIDTH = 80


@task(queue="work", max_attempts=3, backoff=Backoff(base_s=0.05))
async def double(ctx: Context, number: int) -> int | Retry:
    if number == 3 and ctx.attempt == 1:
        raise ValueError(f"{number} does not \x1b[31mplease")
    return 2 * number


class Cli(CommandLine):
    """`jobledger audit` on an environment of the test's own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.folder = folder
        self._projection = folder / "projection.db"

    def __call__(self, *words: str) -> Answer:
        projection = ["--projection", str(self._projection)] if words[0] == "trail" else []
        return self.run("audit", *words, *self.where, *projection)

    def work(self, *numbers: int) -> list[str]:
        """Enqueue, and let a worker run until every job is final; return the ids."""

        async def work(ledger: Ledger) -> list[str]:
            jobs = [await ledger.enqueue(double, number) for number in numbers]
            async with working(ledger, double):
                await asyncio.gather(*(job.wait(timeout_s=LIMIT_S) for job in jobs))
            return [job.id for job in jobs]

        return self.with_ledger(work)

    def forge(self, job_id: str, prev: str = "") -> int:
        """Publish, past all rules, a second outcome with the right condition; the right link too, without `prev`."""

        async def forge(ledger: Ledger) -> int:
            ref = JobRef(queue="work", job_id=job_id)
            chain = await load(ledger.log, ref)
            event = Completed(
                job=job_id,
                queue="work",
                task=double.name,
                at=datetime.now(UTC),
                by="mallory",
                attempt=1,
                prev=prev or digest(chain.last_data),
            )
            condition = {
                "Nats-Expected-Last-Subject-Sequence": str(chain.last_sequence),
                "Nats-Expected-Last-Subject-Sequence-Subject": ledger.names.chain(ref),
            }
            raw = await nats.connect(self.url)
            try:
                accepted = await raw.jetstream().publish(
                    ledger.names.event(event), encode(event), headers=condition
                )
            finally:
                await raw.close()
            return accepted.seq

        return self.with_ledger(forge)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for name in ("URL", "ENVIRONMENT", "APP", "PROJECTION", "DEBUG"):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    made = Cli(nats_server.url, tmp_path, capsys)
    made.with_ledger(_nothing)
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def _nothing(_: Ledger) -> None:
    """Make the streams, small ones."""


# audit verify


def test_an_empty_ledger_is_sound_and_whatever_comes_later_continues_it(cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    answer = cli("verify", "--report", str(kept))
    assert (answer.code, answer.err) == (0, f"the report is kept in {kept}\n")
    assert answer.out.startswith("the ledger is sound\n0 events, 0 jobs, 0 attempts")
    assert "head    none: no event was there to check" in answer.out
    cli.work(1)
    assert cli("verify", "--against", str(kept)).code == 0


def test_what_workers_made_is_proven_with_head_and_hash(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.work(1, 2, 3)
    (body,) = cli("verify", "--json").lines
    assert (body["sound"], body["states"], body["violations"]) == (True, {"completed": 3}, [])

    async def newest(ledger: Ledger) -> tuple[int, str]:
        last = await ledger.log.get((await ledger.log.head()).last_sequence)
        assert last is not None
        return last.stream_sequence, last.hash

    assert (body["head_sequence"], body["head_hash"]) == cli.with_ledger(newest)
    answer = cli("verify")
    assert answer.code == 0
    assert (
        f"head    {body['head_sequence']}\nhash    {body['head_hash']}\ndigest  {body['digest']}"
        in answer.out
    )
    assert answer.out.count(body["digest"]) == 1, "what is told in full is not told in part as well"
    (part,) = cli("verify", "--from", "3", "--to", "5", "--json").lines
    assert (part["sound"], part["from_sequence"], part["head_sequence"]) == (True, 3, 5)
    on_a_terminal(monkeypatch, WIDTH)
    lines = unstyled(cli("verify").out)
    assert all(line == line.rstrip() and len(line) <= WIDTH for line in lines), lines


def test_a_planted_event_is_named_and_the_exit_code_is_4(cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    job, _ = cli.work(1, 2)
    assert cli("verify", "--report", str(kept)).code == 0
    good = kept.read_bytes()
    sequence = cli.forge(job)
    answer = cli("verify", "--against", str(kept), "--report", str(kept))
    assert answer.code == 4
    assert answer.out.startswith("the ledger is NOT sound: 1 violation (outcome 1)")
    said = (
        f"jobledger: the ledger is not sound: rule `outcome` is broken at stream sequence {sequence} of work/{job}: "
        "`completed` is a second outcome of attempt 1, which was completed before"
    )
    assert said in answer.err.splitlines()
    assert kept.read_bytes() == good, "what is wrong does not become what is expected"
    body = cli("verify", "--json")
    assert (body.code, body.lines[0]["broken"]) == (4, {"outcome": 1})
    error = json.loads(body.err)["error"]
    assert (error["code"], error["type"]) == (4, "LedgerNotSoundError")


def test_an_unsound_ledger_is_reported_to_a_new_file_too(cli: Cli, tmp_path: Path) -> None:
    (job,) = cli.work(1)
    cli.forge(job)
    kept = tmp_path / "report.json"
    assert cli("verify", "--report", str(kept)).code == 4
    assert json.loads(kept.read_text(encoding="utf-8"))["sound"] is False


def test_a_tail_that_is_cut_or_written_anew_is_found_by_an_earlier_report(cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    cli.work(1, 2)
    (body,) = cli("verify", "--json", "--report", str(kept)).lines
    head = body["head_sequence"]

    async def cut(ledger: Ledger) -> None:
        """Make the stream anew with all but the last two events: sound in itself."""
        messages = [each async for batch in ledger.log.read_messages() for each in batch]
        raw = await nats.connect(cli.url)
        stream = ledger.names.ledger_stream
        config = (await raw.jetstream().stream_info(stream)).config
        await raw.jetstream().delete_stream(stream)
        # Without what the client adds by itself the server keeps the settings as they were.
        config.metadata = {
            name: value for name, value in (config.metadata or {}).items() if not name.startswith("_nats")
        }
        await raw.jetstream().add_stream(config)
        for message in messages[:-2]:
            await raw.jetstream().publish(message.subject, message.data)
        await raw.close()

    cli.with_ledger(cut)
    assert cli("verify").code == 0
    answer = cli("verify", "--against", str(kept))
    assert answer.code == 4
    assert f"the ledger ends before {head}, where the earlier report did" in answer.err
    cli.work(5)  # it grows beyond the old head, with other events
    answer = cli("verify", "--against", str(kept))
    assert answer.code == 4
    assert (
        f"rule `history` is broken at stream sequence {head}: stream sequence 1 to {head} is not"
        in answer.err
    )


def test_a_projection_is_compared_in_the_same_report(cli: Cli, tmp_path: Path) -> None:
    cli.work(1, 2)
    path = tmp_path / "jobs.db"
    compare = ("verify", "--with-projection", "--projection", str(path))
    answer = cli(*compare)
    assert (answer.code, "there is no projection" in answer.err) == (3, True), answer.err

    async def follow(ledger: Ledger) -> int:
        with Projector(ledger.log, path) as projector:
            return (await projector.catch_up()).stream_sequence

    position = cli.with_ledger(follow)
    cli.work(5)  # what it has not read yet does not count against it
    answer = cli(*compare)
    assert answer.code == 0, answer.err
    text = " ".join(answer.out.split())
    assert f"jobs.db is what the events up to stream sequence {position} add up to" in text
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET retry_count = 77 WHERE rowid = 1")
        connection.commit()
    answer = cli(*compare, "--json")
    assert answer.code == 4
    (body,) = answer.lines
    place, rows = [each for each in body["compared"] if each["what"] == "projection"]
    assert (body["broken"], place["agrees"], rows["agrees"]) == ({"projection": 1}, True, False)
    assert "retry_count" in body["violations"][0]["sentence"]
    assert "77 in" in rows["sentence"]
    assert "in the ledger" in rows["sentence"]
    assert "rule `projection` is broken" in json.loads(answer.err)["error"]["message"]
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
    answer = cli(*compare)
    assert (answer.code, "[projection]" in answer.out) == (4, True)


def test_a_projection_of_a_ledger_that_went_further_differs(cli: Cli, tmp_path: Path) -> None:
    cli.work(1)
    path = tmp_path / "jobs.db"

    async def follow(ledger: Ledger) -> None:
        with Projector(ledger.log, path) as projector:
            _ = await projector.catch_up()

    cli.with_ledger(follow)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE position SET stream_sequence = 9000")
        connection.commit()
    answer = cli("verify", "--with-projection", "--projection", str(path))
    assert answer.code == 4
    assert "jobs.db has read up to 9000, so it was rewound" in answer.err
    assert "stream_sequence of 1 is 9000 in" in answer.out


def test_how_late_a_timer_may_be_can_be_chosen(cli: Cli) -> None:
    async def delay(ledger: Ledger) -> None:
        _ = await ledger.enqueue(double.options(id="forgotten", delay_s=0.001), 1)

    cli.with_ledger(delay)
    assert cli("verify").code == 0
    answer = cli("verify", "--timer-grace", "0")
    assert answer.code == 4
    assert "rule `timer` is broken at stream sequence 1 of work/forgotten: it was due at" in answer.err


def test_counts_by_type_and_cause_are_in_the_report(cli: Cli) -> None:
    cli.work(1, 3)  # the second is retried once
    (body,) = cli("verify", "--json", "--memory", "1").lines
    assert body["types"] == {"queued": 3, "started": 3, "completed": 2, "failed": 1}
    assert body["causes"] == {"new": 2, "retried": 1}
    assert (body["attempts"], body["attempts_lost"], body["seals"], body["archived_through"]) == (3, 0, 0, 0)


@each_row(
    ("words", "code", "sentence"),
    [
        (("--with-projection", "--from", "5"), 2, "a projection can only be compared with the whole ledger"),
        (("--timer-grace", "-1"), 2, "'--timer-grace'"),
        (("--memory", "0"), 2, "'--memory'"),
        (("--archive", "nowhere"), 3, "nowhere"),
        (("--from", "5", "--to", "3"), 2, "--to 3 comes before --from 5"),
        (("--against", "none.json"), 3, "there is no earlier report none.json: make one with --report"),
        (("--against", "bad.json"), 2, "bad.json is not a report of `jobledger audit verify`"),
        (("--against", "report.json", "--from", "2"), 2, "--from 2: the earlier report begins at 1"),
        (("--against", "report.json", "--to", "1"), 2, "--to 1: the earlier report goes up to "),
        (("--report", "no/such/report.json"), 2, "--report no/such/report.json: there is no folder "),
        (("--from", "0"), 2, "'--from': Input should be greater than or equal to 1"),
        (("--from", "9000"), 2, "--from 9000 lies beyond the ledger's end, which is 3"),
        (("--to", "9000"), 2, "--to 9000 lies beyond the ledger's end, which is 3"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_a_sentence(
    cli: Cli, reports: None, words: tuple[str, ...], code: int, sentence: str
) -> None:
    answer = cli("verify", *words)
    assert (answer.code, sentence in answer.err) == (code, True), answer.err


def test_no_server_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", "--url", "nats://127.0.0.1:1"]) == 5
    assert "jobledger: " in capsys.readouterr().err


@pytest.fixture
def reports(cli: Cli, here: Path) -> None:
    """A report of a ledger with one job, and one that is none."""
    cli.work(1)
    assert cli("verify", "--report", "report.json").code == 0
    (here / "bad.json").write_text("{}", encoding="utf-8")


# audit trail


def test_a_story_tells_each_event_and_what_was_waited_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = cli.work(3)
    answer = cli("trail", job[:30])
    assert (answer.code, answer.err) == (0, "")
    words = " ".join(answer.out.split())
    for said in (
        f"job {job} task double in queue work",
        "queued in queue work, by ",
        "waits for a worker of queue work",
        "started: attempt 1 on ",
        r"failed: attempt 1: ValueError: 3 does not \x1b[31mplease; waits for its backoff of ",
        "queued: retried, attempt 2 is next, ",
        " after its time, by ",
        "completed: attempt 2",
        ", 2 attempts",
    ):
        assert said in words
    summary, chain = answer.out.splitlines()[-2:]
    assert summary.startswith("completed after ")
    assert chain == "chain of 6 events: unbroken"
    assert "\x1b" not in answer.out
    on_a_terminal(monkeypatch, WIDTH)
    assert max(map(len, unstyled(cli("trail", job[:30]).out))) <= WIDTH


def test_a_story_is_the_same_as_an_object(cli: Cli) -> None:
    (job,) = cli.work(3)
    (body,) = cli("trail", job, "--json", "--queue", "work").lines
    assert (body["id"], body["queue"], body["task"]) == (job, "work", "double")
    assert [line["event"] for line in body["lines"]] == [
        "queued",
        "started",
        "failed",
        "queued",
        "started",
        "completed",
    ]
    failed = body["lines"][2]
    assert (failed["attempt"], failed["error"]["type"]) == (1, "ValueError")
    assert body["lines"][3]["waited_for"] == failed["waits_for"]
    assert body["lines"][3]["waited_s"] >= 0.04
    summary = body["summary"]
    assert (summary["state"], summary["attempts"]) == ("completed", 2)
    parts = summary["waiting_s"] + summary["running_s"] + summary["dead_s"]
    assert summary["total_s"] == pytest.approx(parts)
    since = sum(line["since_s"] for line in body["lines"] if line["since_s"] is not None)
    assert summary["total_s"] == pytest.approx(since)


def test_a_story_is_told_as_of_a_past_moment(cli: Cli) -> None:
    (job,) = cli.work(3)
    whole = cli("trail", job, "--json").lines[0]["lines"]
    third = whole[2]
    (body,) = cli("trail", job, "--sequence", str(third["stream_sequence"]), "--json").lines
    assert body["lines"] == whole[:3]
    assert body["summary"]["state"] == "retry_wait"
    answer = cli("trail", job, "--at", third["at"])
    assert answer.out.startswith("as of ")
    assert "retry wait after" in answer.out
    assert "completed" not in answer.out
    assert cli("trail", job, "--sequence", "0").code == 3
    assert cli("trail", job, "--at", "2200-01-01").code == 2
    assert cli("trail", "reactor/seals", "--sequence", "1").code == 2


def test_a_takeover_is_told(cli: Cli) -> None:
    async def taken_over(ledger: Ledger) -> None:
        ref = (await ledger.enqueue(double.options(id="lost"), 1)).ref
        job = await ledger.execute(ref, Claim(worker="w1", lease_s=15), by="w1")
        take = TakeOver(worker="w2", lease_s=15, lost_epoch=job.claim_epoch)
        await ledger.execute(ref, take, by="w2")

    cli.with_ledger(taken_over)
    words = " ".join(cli("trail", "lost").out.split())
    assert "started: attempt 2 on w2; attempt 1 is lost: worker w1 had recorded nothing for " in words
    assert "2 attempts (1 lost)" in words


def test_a_broken_chain_is_told_by_all_who_read_it(cli: Cli) -> None:
    (job,) = cli.work(1)
    _acted(cli)
    where = (*cli.where, "--projection", str(cli.folder / "projection.db"))
    whole = cli.run("jobs", "show", "b", *where)
    assert (whole.code, "chain of 5 events: unbroken" in whole.out) == (0, True)
    sequence = cli.forge("b", prev="0" * 64)
    for words in (("audit", "trail", "b"), ("jobs", "show", "b")):
        answer = cli.run(*words, *where)
        assert answer.code == 4
        assert f"chain of 6 events: BROKEN at {sequence}: it follows '000" in " ".join(answer.out.split())
        assert f"the chain of job b is BROKEN at stream sequence {sequence}" in answer.err
        (body,) = cli.run(*words, *where, "--json").lines
        assert (body["chain"]["events"], body["chain"]["broken_at"]) == (6, sequence)
    answer = cli("who")
    assert answer.code == 4
    assert f"work/b: chain of 6 events: BROKEN at {sequence}" in " ".join(answer.out.split())
    told = {each["job"]: each["chain_broken_at"] for each in cli("who", "--json").lines}
    assert told == {"a": None, "b": sequence}
    assert cli("who", "--by", "nobody").code == 0
    assert cli("trail", job).code == 0, "another job's chain is whole"


def test_a_hidden_beginning_is_told(cli: Cli) -> None:
    """A planted first event makes the older ones those of another job: only an archive run may free an id."""
    (job,) = cli.work(1)

    async def plant(ledger: Ledger) -> int:
        ref = JobRef(queue="work", job_id=job)
        first = (await ledger.job(job)).ref
        assert first == ref
        event = (await (await ledger.job(job)).history())[0].event
        planted = msgspec.structs.replace(event, by="mallory")
        raw = await nats.connect(cli.url)
        try:
            return (await raw.jetstream().publish(ledger.names.event(planted), encode(planted))).seq
        finally:
            await raw.close()

    sequence = cli.with_ledger(plant)
    answer = cli("trail", job)
    assert (answer.code, f"BROKEN at {sequence}" in answer.out) == (4, True), answer


def test_times_are_the_events_own_after_a_restore(cli: Cli) -> None:
    """The server stored these events now; they say that they were made in 2020, a day apart."""

    async def bring_back(ledger: Ledger) -> None:
        ref = JobRef(queue="work", job_id="old")
        made = datetime(2020, 1, 31, 8, tzinfo=UTC)
        for command, at, by in (
            (enqueue_of(ref, task=double.name), made, "shop"),
            (CancelJob(reason="late"), made + timedelta(days=1), "alice"),
        ):
            chain = await load(ledger.log, ref)
            await commit(ledger.log, chain, decide(chain.job, command, Stamp(at=at, by=by)))

    cli.with_ledger(bring_back)
    answer = cli("trail", "old")
    assert answer.code == 0
    assert "times are the events' own, UTC; the server's differ by up to" in " ".join(answer.out.split())
    assert "2020-01-31" in answer.out
    assert "cancelled after 1 d: waiting 1 d" in answer.out
    (body,) = cli("trail", "old", "--json").lines
    assert (body["times"], body["lines"][1]["at"]) == ("events", "2020-02-01T08:00:00.000000Z")
    where = (*cli.where, "--projection", str(cli.folder / "projection.db"))
    assert "events; times are the events' own" in " ".join(cli.run("jobs", "show", "old", *where).out.split())
    (act,) = cli("who", "--json").lines
    assert (act["at"], act["times"]) == ("2020-02-01T08:00:00.000000Z", "events")
    assert "2020-02-01 08:00:00 cancel   work/old by alice: late" in cli("who").out


def test_a_story_of_no_job_is_not_found(cli: Cli) -> None:
    answer = cli("trail", "nobody")
    assert (answer.code, "no job 'nobody' is in the ledger" in answer.err) == (3, True)


# audit who


def _acted(cli: Cli) -> datetime:
    """Let people act; return a moment of the server between the first act and the others."""

    async def act(ledger: Ledger) -> datetime:
        hour = timedelta(hours=1)
        first = await ledger.enqueue(double.options(id="a", delay_s=hour.total_seconds()), 1)
        await ledger.retry(first.ref, reason="now, please", by="alice")
        stored = (await first.history())[-1].stored_at
        await ledger.cancel(first.ref, reason="a [red]mistake\x1b[0m", by="bob")
        second = await ledger.enqueue(double.options(id="b"), 2)
        await ledger.execute(second.ref, DeadLetter(reason="rejected"))
        await ledger.requeue("b", reason="fixed", by="alice", edit={"number": 5})
        await ledger.execute(second.ref, DeadLetter(reason="rejected"))
        await ledger.discard("b", by="bob")
        return stored + timedelta(microseconds=1)

    return cli.with_ledger(act)


def test_acts_of_people_are_listed_the_newest_first(cli: Cli) -> None:
    assert cli("who").out == "no operator actions\n"
    between = _acted(cli)
    listed = cli("who", "--json").lines
    assert [(each["by"], each["act"], each["job"], each["reason"]) for each in listed] == [
        ("bob", "discard", "b", ""),
        ("alice", "requeue", "b", "fixed"),
        ("bob", "cancel", "a", "a [red]mistake\x1b[0m"),
        ("alice", "retry", "a", "now, please"),
    ]
    assert [each["new_input"] for each in listed] == [False, True, False, False]
    assert cli("who", "--json", "--by", "alice").lines == [listed[1], listed[3]]
    assert cli("who", "--json", "--since", between.isoformat()).lines == listed[:3]
    assert cli("who", "--since", "2200-01-01").out == "no operator actions match\n"
    limited = cli("who", "--limit", "1")
    assert limited.out.splitlines()[0].endswith("discard  work/b by bob")
    assert limited.err == "the newest 1 of 4 are shown; --limit shows more\n"
    assert limited.out.splitlines()[-1] == "chains of 1 job, 5 events: unbroken"
    shown = cli("who")
    assert (shown.code, shown.err) == (0, "")
    assert r"cancel   work/a by bob: a [red]mistake\x1b[0m" in shown.out
    assert "requeue  work/b by alice, with a new input: fixed" in shown.out


def test_a_cancel_that_a_worker_obeyed_is_listed_once(cli: Cli) -> None:
    async def ask(ledger: Ledger) -> None:
        ref = (await ledger.enqueue(double.options(id="busy"), 1)).ref
        job = await ledger.execute(ref, Claim(worker="w1", lease_s=15), by="w1")
        await ledger.cancel(ref, reason="enough", by="alice")
        take = TakeOver(worker="w2", lease_s=15, lost_epoch=job.claim_epoch)
        assert (await ledger.execute(ref, take, by="w2")).state == "cancelled"

    cli.with_ledger(ask)
    assert [(each["by"], each["reason"]) for each in cli("who", "--json").lines] == [("alice", "enough")]


def test_words_that_choose_nothing_are_a_usage_error(cli: Cli) -> None:
    assert cli("who", "--since", "yesterday").code == 2
    assert cli("who", "--limit", "0").code == 2
