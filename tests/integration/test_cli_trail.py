"""`jobledger audit trail` and `who` against a real server: the story of a job, and what people did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import nats
import pytest
from tests.support.audit_command import WIDTH, AuditCommand, double
from tests.support.orders import enqueue_of
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.codec import encode
from jobledger.ledger.model.commands import CancelJob, Claim, DeadLetter, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.subjects import JobRef

if TYPE_CHECKING:
    pass

# audit trail


def test_a_story_tells_each_event_and_what_was_waited_for(
    audit: AuditCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = audit.work(3)
    answer = audit("trail", job[:30])
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
    assert max(map(len, unstyled(audit("trail", job[:30]).out))) <= WIDTH


def test_a_story_is_the_same_as_an_object(audit: AuditCommand) -> None:
    (job,) = audit.work(3)
    (body,) = audit("trail", job, "--json", "--queue", "work").lines
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


def test_a_story_is_told_as_of_a_past_moment(audit: AuditCommand) -> None:
    (job,) = audit.work(3)
    whole = audit("trail", job, "--json").lines[0]["lines"]
    third = whole[2]
    (body,) = audit("trail", job, "--sequence", str(third["stream_sequence"]), "--json").lines
    assert body["lines"] == whole[:3]
    assert body["summary"]["state"] == "retry_wait"
    answer = audit("trail", job, "--at", third["at"])
    assert answer.err.startswith("as of ")
    assert "retry wait after" in answer.out
    assert "completed" not in answer.out
    (section,) = audit.run("jobs", "show", job, "--trail", "--json", *audit.where).lines
    assert section["lines"] == whole
    assert audit("trail", job, "--sequence", "0").code == 3
    assert audit("trail", job, "--at", "2200-01-01").code == 2
    assert audit("trail", "reactor/seals", "--sequence", "1").code == 2


def test_a_takeover_is_told(audit: AuditCommand) -> None:
    async def taken_over(ledger: Ledger) -> None:
        ref = (await ledger.enqueue(double.options(id="lost"), 1)).ref
        job = await ledger.execute(ref, Claim(worker="w1", lease_s=15), by="w1")
        take = TakeOver(worker="w2", lease_s=15, lost_epoch=job.claim_epoch)
        await ledger.execute(ref, take, by="w2")

    audit.with_ledger(taken_over)
    words = " ".join(audit("trail", "lost").out.split())
    assert "started: attempt 2 on w2; attempt 1 is lost: worker w1 had recorded nothing for " in words
    assert "2 attempts (1 lost)" in words


@pytest.mark.unsound_ledger("an outcome is planted that names another event before it")
def test_a_broken_chain_is_told_by_all_who_read_it(audit: AuditCommand) -> None:
    (job,) = audit.work(1)
    _acted(audit)
    where = (*audit.where, "--projection", str(audit.folder / "projection.db"))
    whole = audit.run("jobs", "show", "b", *where)
    assert (whole.code, "chain of 5 events: unbroken" in whole.out) == (0, True)
    sequence = audit.forge("b", prev="0" * 64)
    for words in (("audit", "trail", "b"), ("jobs", "show", "b")):
        answer = audit.run(*words, *where)
        assert answer.code == 4
        assert f"chain of 6 events: BROKEN at {sequence}: it follows '000" in " ".join(answer.out.split())
        assert f"the chain of job b is BROKEN at stream sequence {sequence}" in answer.err
        (body,) = audit.run(*words, *where, "--json").lines
        assert (body["chain"]["events"], body["chain"]["broken_at"]) == (6, sequence)
    answer = audit("who")
    assert answer.code == 4
    assert f"work/b: chain of 6 events: BROKEN at {sequence}" in " ".join(answer.out.split())
    told = {each["job"]: each["chain_broken_at"] for each in audit("who", "--json").lines}
    assert told == {"a": None, "b": sequence}
    assert audit("who", "--by", "nobody").code == 0
    assert audit("trail", job).code == 0, "another job's chain is whole"


@pytest.mark.unsound_ledger("events are taken out of the stream")
def test_a_hidden_beginning_is_told(audit: AuditCommand) -> None:
    """A planted first event makes the older ones those of another job: only an archive run may free an id."""
    (job,) = audit.work(1)

    async def plant(ledger: Ledger) -> int:
        ref = JobRef(queue="work", job_id=job)
        first = (await ledger.job(job)).ref
        assert first == ref
        event = (await (await ledger.job(job)).history())[0].event
        planted = msgspec.structs.replace(event, by="mallory")
        raw = await nats.connect(audit.url)
        try:
            return (await raw.jetstream().publish(ledger.names.event(planted), encode(planted))).seq
        finally:
            await raw.close()

    sequence = audit.with_ledger(plant)
    answer = audit("trail", job)
    assert (answer.code, f"BROKEN at {sequence}" in answer.out) == (4, True), answer


def test_times_are_the_events_own_after_a_restore(audit: AuditCommand) -> None:
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

    audit.with_ledger(bring_back)
    answer = audit("trail", "old")
    assert answer.code == 0
    assert "times are the events' own, UTC; the server's differ by up to" in " ".join(answer.out.split())
    assert "2020-01-31" in answer.out
    assert "cancelled after 1 d: waiting 1 d" in answer.out
    (body,) = audit("trail", "old", "--json").lines
    assert (body["times"], body["lines"][1]["at"]) == ("events", "2020-02-01T08:00:00.000000Z")
    where = (*audit.where, "--projection", str(audit.folder / "projection.db"))
    assert "events; times are the events' own" in " ".join(
        audit.run("jobs", "show", "old", *where).out.split()
    )
    (act,) = audit("who", "--json").lines
    assert (act["at"], act["times"]) == ("2020-02-01T08:00:00.000000Z", "events")
    assert "2020-02-01 08:00:00 cancel   work/old by alice: late" in audit("who").out


def test_a_story_of_no_job_is_not_found(audit: AuditCommand) -> None:
    answer = audit("trail", "nobody")
    assert (answer.code, "no job 'nobody' is in the ledger" in answer.err) == (3, True)


# audit who


def _acted(audit: AuditCommand) -> datetime:
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

    return audit.with_ledger(act)


def test_acts_of_people_are_listed_the_newest_first(audit: AuditCommand) -> None:
    assert audit("who").out == "no operator acted\n"
    between = _acted(audit)
    listed = audit("who", "--json").lines
    assert [(each["by"], each["act"], each["job"], each["reason"]) for each in listed] == [
        ("bob", "discard", "b", ""),
        ("alice", "requeue", "b", "fixed"),
        ("bob", "cancel", "a", "a [red]mistake\x1b[0m"),
        ("alice", "retry", "a", "now, please"),
    ]
    assert [each["new_input"] for each in listed] == [False, True, False, False]
    assert audit("who", "--json", "--by", "alice").lines == [listed[1], listed[3]]
    assert audit("who", "--json", "--since", between.isoformat()).lines == listed[:3]
    assert audit("who", "--since", "2200-01-01").out == "no operator actions match\n"
    limited = audit("who", "--limit", "1")
    assert limited.out.splitlines()[0].endswith("discard  work/b by bob")
    assert limited.err == "the newest 1 of 4 are shown; --limit shows more\n"
    assert limited.out.splitlines()[-1] == "chains of 1 job, 5 events: unbroken"
    shown = audit("who")
    assert (shown.code, shown.err) == (0, "")
    assert r"cancel   work/a by bob: a [red]mistake\x1b[0m" in shown.out
    assert "requeue  work/b by alice, with a new input: fixed" in shown.out


def test_a_cancel_that_a_worker_obeyed_is_listed_once(audit: AuditCommand) -> None:
    async def ask(ledger: Ledger) -> None:
        ref = (await ledger.enqueue(double.options(id="busy"), 1)).ref
        job = await ledger.execute(ref, Claim(worker="w1", lease_s=15), by="w1")
        await ledger.cancel(ref, reason="enough", by="alice")
        take = TakeOver(worker="w2", lease_s=15, lost_epoch=job.claim_epoch)
        assert (await ledger.execute(ref, take, by="w2")).state == "cancelled"

    audit.with_ledger(ask)
    assert [(each["by"], each["reason"]) for each in audit("who", "--json").lines] == [("alice", "enough")]


def test_words_that_choose_nothing_are_a_usage_error(audit: AuditCommand) -> None:
    assert audit("who", "--since", "yesterday").code == 2
    assert audit("who", "--limit", "0").code == 2
