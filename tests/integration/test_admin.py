"""What a person can do, without a command line: found, shown, acted on, by whoever imports `jobledger.admin`."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from jobledger.admin import acts
from jobledger.admin.bulk import discard_act, perform, requeue_act
from jobledger.admin.dead_letters import (
    DeadLetterChoice,
    find_dead_letters,
    show_dead_letter,
)
from jobledger.admin.errors import ChoiceError, JobNotYetError, NotADeadLetterError
from jobledger.admin.find import find_history, find_job
from jobledger.admin.health import Examination, examine
from jobledger.admin.lists.acts import list_acts
from jobledger.admin.lists.dead_letters import group_dead_letters, list_dead_letters
from jobledger.admin.lists.jobs import count_jobs, list_jobs
from jobledger.admin.objects.jobs import JobNow
from jobledger.admin.operators import operator_acts
from jobledger.admin.past import AsOf, events_until
from jobledger.admin.projection import projection_status
from jobledger.admin.queues import together
from jobledger.admin.rows import AnswerPosition, Rows, file_name
from jobledger.admin.server_pages import Monitor
from jobledger.admin.verbs.jobs import CancelJob, JobVerb, RetryJob
from jobledger.admin.views import job_details
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.dead_letters import RequeueOptions
from jobledger.ledger.model.commands import Claim, Fail
from jobledger.ledger.model.errors import AmbiguousIdError, JobNotFoundError, ServerUnreachableError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import (
    ActFilter,
    CursorMismatchError,
    DeadLetterFilter,
    JobFilter,
    ProjectionBehindError,
)

pytestmark = pytest.mark.anyio


@task(queue="bills", max_attempts=1)
async def bill(cents: int) -> int:
    return cents


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncGenerator[Ledger, None]:
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as made:
        for number in range(3):
            ref = (await made.enqueue(bill.options(id=f"bill-{number}"), number)).ref
            job = await made.execute(ref, Claim(worker="web-1-0a", lease_s=15))
            error = ErrorInfo(kind="exception", type="ValueError", message=f"no account {number}")
            await made.execute(ref, Fail(epoch=job.claim_epoch, error=error))
        await made.enqueue(bill.options(id="waiting-1"), 7)
        yield made


@pytest.fixture
def rows(ledger: Ledger, tmp_path: Path) -> Rows:
    return Rows(ledger, tmp_path / "rows.db")


def test_nothing_of_it_loads_what_draws_on_a_terminal() -> None:
    program = (
        "import importlib, pkgutil, sys, jobledger.admin as admin\n"
        "for each in pkgutil.iter_modules(admin.__path__):\n"
        "    importlib.import_module('jobledger.admin.' + each.name)\n"
        "print(sorted({'rich', 'typer', 'jobledger.cli', 'jobledger.workers'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[]\n"


async def test_a_job_is_found_by_a_prefix_that_only_one_has(rows: Rows) -> None:
    assert (await find_job(rows, "wait")).id == "waiting-1"
    with pytest.raises(AmbiguousIdError):
        await find_job(rows, "bill")
    with pytest.raises(JobNotFoundError):
        await find_job(rows, "nobody")


async def test_the_file_is_looked_for_once_and_only_when_it_is_needed(ledger: Ledger, tmp_path: Path) -> None:
    asked: list[str] = []

    async def place() -> Path:
        asked.append(await file_name(ledger))
        return tmp_path / asked[0]

    rows = Rows(ledger, place)
    await find_job(rows, "waiting-1")
    assert asked == []
    await find_job(rows, "wait")
    await rows.catch_up()
    (name,) = asked
    assert ledger.names.environment in name
    assert (tmp_path / name).exists()


async def test_who_watches_is_told_how_far_the_reading_is(ledger: Ledger, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    @contextmanager
    def progress(what: str) -> Generator[Callable[[int, int], None], None, None]:
        def tell(done: int, total: int) -> None:
            told.append((what, done, total))

        yield tell

    await Rows(ledger, tmp_path / "rows.db", progress=progress).catch_up()
    what, done, total = told[-1]
    assert (what, done) == ("reading the ledger", total)


async def test_a_job_is_shown_with_its_values_as_it_was_then(rows: Rows) -> None:
    log, clock = rows.ledger.log, rows.ledger.clock
    found = await find_history(rows, "bill-0")
    job = await (await find_job(rows, "bill-0")).snapshot()
    details = await job_details(rows.ledger, job, found.history)
    assert (details.status, details.input, details.attempts[0].worker) == (
        "dead_lettered",
        {"cents": 0},
        "web-1-0a",
    )
    assert msgspec.json.decode(msgspec.json.encode(details))["error"]["type"] == "ValueError"
    then = await AsOf(stream_sequence=2).moment(log, clock)
    assert [stored.stream_sequence for stored in events_until(found.history, then)] == [1, 2]
    with pytest.raises(JobNotYetError):
        events_until(found.history, await AsOf(stream_sequence=0).moment(log, clock))


async def test_rows_are_those_of_the_moment(rows: Rows) -> None:
    then = await AsOf(stream_sequence=2).moment(rows.ledger.log, rows.ledger.clock)
    async with rows.opened(then) as view:
        assert [row.status for row in view.store.jobs()] == ["running"]
    async with rows.opened() as view:
        (queue,) = together(view.store.queues())
        assert (queue.counts["dead_lettered"], queue.counts["queued"], view.begins_at) == (3, 1, 1)


async def done(rows: Rows, wish: JobVerb, by: str) -> JobNow:
    return await rows.ledger.do(wish, by=by, projection=await rows.path())


async def test_an_act_finds_its_job_and_keeps_who_asked(rows: Rows) -> None:
    assert (await acts.why(rows, "wait")).why.status == "queued"
    await done(rows, CancelJob(id="wait", reason="paid"), "alice")
    job = await (await find_job(rows, "wait")).snapshot()
    assert (job.state.value, job.cancel_reason) == ("cancelled", "paid")
    assert (await done(rows, RetryJob(id="bill-2"), "alice")).status == "queued"
    with pytest.raises(NotADeadLetterError):
        await show_dead_letter(rows, "bill-2")


async def test_what_operators_did_is_listed_the_newest_first(rows: Rows) -> None:
    await done(rows, RetryJob(id="bill-0"), "alice")
    await done(rows, CancelJob(id="waiting-1", reason="paid"), "bob")
    found = await operator_acts(rows, ActFilter(), limit=1)
    assert ([(each.newest.act, each.newest.by) for each in found.newest], found.total, found.missing) == (
        [("cancel", "bob")], 2, None
    )  # fmt: skip
    by_alice = await operator_acts(rows, ActFilter(by="alice"), limit=5)
    assert [(each.newest.act, each.newest.job) for each in by_alice.newest] == [("requeue", "bill-0")]


async def test_a_plan_changes_nothing_and_says_what_would_be_done(rows: Rows) -> None:
    chosen = await find_dead_letters(rows, DeadLetterChoice(task="bill"))
    act = requeue_act(lambda each: RequeueOptions(edit={"cents": len(each.ref.job_id)}), by="alice")
    head = (await rows.ledger.log.head()).last_sequence
    plan = await perform(rows, act, chosen, plan=True)
    assert [(each.result, each.input_text) for each in plan] == [("planned", b'{"cents":6}')] * 3
    assert (await rows.ledger.log.head()).last_sequence == head
    done = await perform(rows, act, chosen, plan=False)
    assert {each.result for each in done} == {"done"}
    again = await perform(rows, discard_act("late", by="alice"), chosen, plan=False)
    assert {each.result for each in again} == {"refused"}
    async with rows.opened() as view:
        assert (await list_dead_letters(view, DeadLetterFilter())).total == 0


async def test_what_is_done_to_many_is_asked_for_on_purpose(rows: Rows) -> None:
    with pytest.raises(ChoiceError):
        await find_dead_letters(rows, DeadLetterChoice())
    with pytest.raises(ChoiceError):
        await find_dead_letters(rows, DeadLetterChoice(ids=("bill-0",), since=datetime.now(UTC)))
    assert len(await find_dead_letters(rows, DeadLetterChoice(everything=True), limit=2)) == 2


async def test_lists_are_told_page_by_page_with_their_position(rows: Rows) -> None:
    await done(rows, RetryJob(id="bill-2"), "alice")
    await done(rows, CancelJob(id="bill-2", reason="paid"), "bob")
    head = (await rows.ledger.log.head()).last_sequence
    async with rows.opened() as view:
        first = await list_jobs(view, JobFilter(), limit=3)
        second = await list_jobs(view, JobFilter(), limit=3, cursor=first.next)
        assert (len(first.items), len(second.items), second.next) == (3, 1, None)
        assert first.position == AnswerPosition(
            sequence=head, at=first.position.at, behind_events=0, behind_s=0.0
        )
        assert (await count_jobs(view, JobFilter())).by_state["dead_lettered"] == 2
        dead = await list_dead_letters(view, DeadLetterFilter(), limit=1)
        rest = await list_dead_letters(view, DeadLetterFilter(), limit=5, cursor=dead.next)
        assert ([row.job_id for row in (*dead.items, *rest.items)], dead.total) == (["bill-1", "bill-0"], 2)
        (group,) = (await group_dead_letters(view, DeadLetterFilter())).items
        assert (group.count, group.job_id, group.error_type) == (2, "bill-1", "ValueError")
        newest = await list_acts(view, ActFilter(), limit=1)
        older = await list_acts(view, ActFilter(), limit=1, cursor=newest.next)
        assert [act.act for act in (*newest.items, *older.items)] == ["cancel", "requeue"]
        assert (newest.total, older.next) == (2, None)
        for seen in (ActFilter(act="cancel"), ActFilter(by="bob"), ActFilter(job="bill-2", since=view.now)):
            assert (await list_acts(view, seen)).total == (0 if seen.since else 1)
        hidden = ActFilter(visible_queues=("other-*",))
        assert (await list_acts(view, hidden)).items == []
        with pytest.raises(CursorMismatchError):
            await list_acts(view, hidden, cursor=newest.next)


async def test_rows_that_others_follow_say_how_far_they_are_behind(rows: Rows) -> None:
    await rows.catch_up()
    reached = (await rows.ledger.log.head()).last_sequence
    await rows.ledger.enqueue(bill, 1)
    written = (await rows.ledger.log.head()).last_sequence
    async with rows.followed(min_sequence=reached) as view:
        position = view.position()
        assert (position.sequence, position.behind_events) == (reached, written - reached)
        assert position.behind_s >= 0
    with pytest.raises(ProjectionBehindError) as behind:
        async with rows.followed(min_sequence=written, timeout_s=0.05):
            pass
    assert (behind.value.wanted, behind.value.reached) == (written, reached)
    await rows.catch_up()
    async with rows.followed(min_sequence=written) as view:
        assert (view.position().behind_events, view.position().behind_s) == (0, 0.0)


async def test_a_projection_says_how_far_it_is(rows: Rows) -> None:
    status, problem = await projection_status(rows.ledger, await rows.path())
    assert (status.exists, status.position, status.lag_events, problem) == (False, 0, status.head, None)
    await rows.catch_up()
    status, _ = await projection_status(rows.ledger, await rows.path())
    assert (status.exists, status.position, status.lag_events) == (True, status.head, 0)


async def test_an_examination_tells_a_sound_ledger_from_a_server_that_is_not_there(
    rows: Rows, tmp_path: Path
) -> None:
    config = rows.ledger.config
    asked = Examination(
        url=config.url,
        environment=rows.ledger.names.environment,
        monitors=(Monitor("http://127.0.0.1:1", 1),),
        directory=tmp_path,
    )
    health = await examine(asked, lambda _: rows)
    assert health.stopped is None
    failed = [check for check in health.checks if check.status == "fail"]
    assert all("queue" in f"{check.check} {check.found}" for check in failed), (
        failed
    )  # jobs wait without a worker
    assert {"server", "clock", "workers", "projection"} <= {check.check for check in health.checks}
    nobody = await examine(msgspec.structs.replace(asked, url="nats://127.0.0.1:1"), lambda _: rows)
    assert isinstance(nobody.stopped, ServerUnreachableError)
    assert (nobody.is_good, [check.check for check in nobody.checks]) == (False, ["server"])
