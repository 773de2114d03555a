"""What a person does to one job on its page: notes, another time, a run that begins again; and a job that is archived."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.support import waiting_runs
from tests.support.dashboard import HOSTILE, Forms, Someone, check_page, hidden_fields, token_of
from tests.support.limits import LIMIT_S
from tests.support.run_tables import make_tables
from tests.support.working import record_steps, working

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.process.children import setup_of
from jobledger.gateway.process.past import PastViews
from jobledger.gateway.process.rows import FollowedRows
from jobledger.ledger import JobFailedError, Ledger, Run, step, task, workflow
from jobledger.ledger.model.commands import CompleteStep, Fail
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import ErrorInfo, Noted, PayloadRef, Queued, Scheduled
from jobledger.ledger.tables.stores import open_store
from jobledger.projections import PositionArchivedError

pytestmark = pytest.mark.anyio


@task(queue="orders")
async def order(order: str) -> None:
    """Be enqueued only."""


async def test_a_note_is_kept_and_a_job_that_waits_is_moved(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger
) -> None:
    job = await ledger.enqueue(order.options(delay_s=3600), order="77")
    there = f"/jobs/orders/{job.id}"
    token = token_of((await http.get(there)).text)
    noted = await http.post(f"{there}/note", data={"token": token, "text": f"look\r\nat {HOSTILE}"})
    assert (noted.status_code, noted.headers["location"]) == (303, there)
    last = (await job.history())[-1].event
    assert isinstance(last, Noted)
    assert (last.text, last.by[:6]) == (f"look\nat {HOSTILE}", "local:")
    page = await http.get(there)
    check_page(page)
    assert "look" in page.text
    sent = {"token": token, "reason": "they are closed"}
    both, long = {"run_at": "2030-01-01T08:00", "delay_s": "5"}, {"delay_s": "5", "reason": "x" * 2001}
    for wrong in ({}, both, long, {"run_at": "soon"}, {"delay_s": "-1"}):
        assert (await http.post(f"{there}/reschedule", data={**sent, **wrong})).status_code == 400, wrong
    moved = await http.post(f"{there}/reschedule", data={**sent, "run_at": "2030-01-01T08:00"})
    assert moved.status_code == 303
    last = (await job.history())[-1].event
    assert isinstance(last, Scheduled)
    assert (last.run_at, last.reason) == (datetime(2030, 1, 1, 8, tzinfo=UTC), "they are closed")
    soon = await http.post(f"{there}/reschedule", data={**sent, "delay_s": "60"})
    assert soon.status_code == 303
    due = (await job.snapshot()).due_at
    assert due is not None
    assert due < ledger.clock.now() + timedelta(seconds=61)
    acts = (await http.get("/acts")).text
    assert acts.count("reschedule ") == 2
    gateway.access = Someone("viewer")
    page = await http.get(there)
    assert 'method="post"' not in page.text
    assert (await http.post(f"{there}/note", data={"token": token, "text": "x"})).status_code == 403


async def test_a_job_page_that_is_read_twice_shows_what_happened_in_between(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    job = await ledger.enqueue(order.options(delay_s=3600), order="77")
    there = f"/jobs/orders/{job.id}"
    assert f'action="{there}/cancel"' in (await http.get(there)).text
    await job.cancel()
    assert f'action="{there}/cancel"' not in (await http.get(there)).text
    run = await ledger.enqueue(order, order="78")
    await record_steps(ledger, run, "reserve", "pay")
    plan = f"/jobs/orders/{run.id}/rerun?step=pay"
    before = hidden_fields((await http.get(plan)).text)["sequence"]
    await ledger.note(run, "look")
    assert hidden_fields((await http.get(plan)).text)["sequence"] != before
    wrong = await http.get("/jobs/orders/*")
    assert wrong.status_code == 400


@task(queue="mail", max_attempts=1, limits=("smtp",))
async def send(to: str, copies: int = 1, urgent: bool = False) -> None:
    """Be enqueued only."""


@pytest.mark.parametrize("to", ["ann@example.com", "two\nlines"])
async def test_a_job_is_run_again_by_a_form_that_begins_as_it_was(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger, to: str
) -> None:
    options = send.options(queue="post", tenant="acme", limits=["smtp", "tenant:acme"], priority="low")
    job = await ledger.enqueue(options, to=to, copies=3, urgent=True)
    there = f"/jobs/post/{job.id}"
    assert "Run again" not in (await http.get(f"{there}?range=6h")).text  # no worker ever had the task
    async with working(ledger, send), asyncio.timeout(LIMIT_S):
        while await ledger.find_task("send") is None:
            await asyncio.sleep(0.005)
    (link,) = re.findall(r'href="([^"]+)">Run again', (await http.get(there)).text)
    page = await http.get(html.unescape(link))
    check_page(page)
    (form,) = (each for each in Forms(page.text).found if each.action.endswith("/enqueue"))
    answer = await http.post(form.action, data=form.fields)
    assert answer.status_code == 303, answer.text
    made = await (await ledger.job(answer.headers["location"].rpartition("/")[2])).snapshot()
    was = await job.snapshot()
    assert msgspec.json.decode(made.order.input) == msgspec.json.decode(was.order.input)
    assert made.id != job.id
    assert (made.task, made.order.tenant, made.order.limits) == ("send", "acme", was.order.limits)
    assert made.order.priority == "low"
    for without in ("payloads", "queue"):
        gateway.access = Someone("operator", without=(without,))
        assert "Run again" not in (await http.get(there)).text, without
        assert (await http.get(html.unescape(link))).status_code == 403, without
    gateway.access = Someone("operator", ("mail",))
    assert (await http.get(html.unescape(link))).status_code == 404
    gateway.access = Someone("operator")
    assert (await http.get("/tasks/send?like=post/nobody")).status_code == 404


async def test_pages_say_that_events_were_archived_before_the_lists_had_them(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.enqueue(order, order="76")
    await gateway.rows.catch_up()
    run = await ledger.enqueue(order, order="77")
    await record_steps(ledger, run, "reserve", "pay")
    deps = archive_deps(ledger, by="ann", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, tmp_path / "archive", deps).run(datetime.now(UTC))
    for there in (f"/jobs/orders/{run.id}", "/", "/v1/jobs"):
        answer = await http.get(there)
        assert answer.status_code == 503, there
        assert "events were archived before the lists of this gateway had read them" in answer.text
        assert "jobledger projection rebuild" in answer.text
        assert str(tmp_path) not in answer.text
    file = await gateway.rows.path()
    followed = FollowedRows(ledger, file, PastViews(setup_of(ledger, file, "past")))
    with pytest.raises(PositionArchivedError):  # at once: its projector cannot go on
        await followed.catch_up()


async def test_a_run_begins_again_as_it_was_planned(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger
) -> None:
    run = await ledger.enqueue(order, order="red shoes")
    await record_steps(ledger, run, "reserve", "pay")
    there = f"/jobs/orders/{run.id}"
    assert f'action="{there}/rerun"' in (await http.get(there)).text
    plan = await http.get(f"{there}/rerun", params={"step": "pay"})
    check_page(plan)
    assert "copies the ends of 1 step " in plan.text
    sent = {**hidden_fields(plan.text), "reason": HOSTILE, "input": '{"order": "78"}'}
    for wrong in ({"reason": " "}, {"step": "ship"}, {"input": "{"}, {"as_it_was": "soon"}):
        assert (await http.post(f"{there}/rerun", data={**sent, **wrong})).status_code == 400, wrong
    begun = [await http.post(f"{there}/rerun", data=sent) for _ in range(2)]
    assert [each.status_code for each in begun] == [303, 303]
    assert len({each.headers["location"] for each in begun}) == 1  # sent twice, done once
    first = (await (await ledger.job(begun[0].headers["location"].rpartition("/")[2])).history())[0].event
    assert isinstance(first, Queued)
    assert first.rerun_of is not None
    assert (first.by[:6], first.rerun_of.from_step, first.rerun_of.steps) == ("local:", "pay", 1)
    assert (bytes(first.input), first.rerun_of.reason) == (b'{"order":"78"}', HOSTILE)
    made = await http.get(begun[0].headers["location"])
    check_page(made)
    assert f'href="{there}"' in made.text
    acts = await http.get("/acts")
    check_page(acts)
    assert "from step pay: &lt;script&gt;" in acts.text
    gateway.access = Someone("operator", without=("payloads",))
    blind = (await http.get(f"{there}/rerun", params={"step": "pay"})).text
    assert "needs the permission payloads" in blind
    assert "red shoes" not in blind
    sent["token"] = token_of(blind)
    assert (await http.post(f"{there}/rerun", data=sent)).status_code == 403
    await ledger.note(run, "it goes on")
    stale = await http.post(f"{there}/rerun", data={**sent, "input": ""})
    assert (stale.status_code, "plan it again" in stale.text) == (409, True)


async def test_the_page_of_a_run_shows_values_of_steps_to_who_may_see_them(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger
) -> None:
    run = await ledger.enqueue(order, order="red shoes")
    await record_steps(ledger, run, "reserve")
    epoch = (await run.snapshot()).claim_epoch
    large = PayloadRef(sha256="a" * 64, size_bytes=3_000_000)
    pay = CompleteStep(
        epoch=epoch, step="pay", kind="step", target="pay", result=msgspec.Raw(msgspec.json.encode(HOSTILE))
    )
    receipt = msgspec.structs.replace(
        pay, step="print", result=NO_VALUE, result_ref=large, input_sha256="0123456789abcdef"
    )
    for each in (pay, receipt):
        await ledger.execute(run.ref, each)
    there = f"/jobs/orders/{run.id}"
    page = await http.get(there)
    check_page(page)
    page = await http.get(there, params={"step": "pay"})
    check_page(page)
    assert '<h3>Result</h3><pre><span class="js">&#34;&lt;script&gt;' in page.text
    page = await http.get(there, params={"step": "print"})
    assert "3,000,000 bytes, kept beside the ledger" in page.text
    assert "only its digest is kept, <code>0123456789abcdef</code>" in page.text
    gateway.access = Someone("operator", without=("payloads",))
    for name in ("pay", "print"):
        blind = (await http.get(there, params={"step": name})).text
        assert f"<h3>{name}</h3>" in blind
        assert ("<h3>Result" in blind, "beside the ledger" in blind, "digest is kept" in blind) == (
            False,
        ) * 3


async def test_the_rows_of_a_table_are_a_page_for_who_may_see_payloads(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger, tmp_path: Path
) -> None:
    run = await ledger.enqueue(order, order="red shoes")
    columns = {"sku": [HOSTILE, None, *"c" * 40], "cents": range(42), "list": [[1, 2]] * 42}
    await record_steps(ledger, run)
    made = await make_tables(ledger, run, {"a/sums": {**columns, **{f"c{n}": range(42) for n in range(40)}}})
    there = f"/jobs/orders/{run.id}"
    page = await http.get(there, params={"step": "a/sums"})
    check_page(page)
    assert '<summary class="sub">42 rows</summary>' in page.text
    link = html.unescape(re.findall(r'<a href="([^"]+/rows[^"]*)"', page.text)[0])
    assert link == f"{there}/rows?step=a%2Fsums"
    rows = await http.get(link)
    check_page(rows)
    assert "the first 20 of 42 rows" in rows.text
    assert "3 more columns are not shown" in rows.text
    assert rows.text.count("<tr>") == 21
    for text in (
        '<span class="none">\u2013</span>',
        "&lt;script&gt;alert(1)",
        "<td>[1,2]</td>",
        'title="int64">c0<',
    ):
        assert text in rows.text, text
    other = await http.get(f"{there}/rows?step=other")
    check_page(other)
    assert (other.status_code, '<p class="problem">run' in other.text) == (404, True)
    gateway.access = Someone("operator", without=("payloads",))
    assert "/rows" not in (await http.get(there)).text
    assert (await http.get(link)).status_code == 403
    gateway.access = Someone("operator", ("mail",))
    assert (await http.get(link)).status_code == 403
    gateway.access = Someone("operator")
    await open_store(ledger).remove(made["a/sums"])
    await ledger.note(run, "its rows are gone")
    gone = await http.get(link)
    check_page(gone)
    assert (gone.status_code, "jobledger jobs rerun" in gone.text) == (410, True)


async def test_a_run_begins_again_with_all_that_completed(http: httpx.AsyncClient, ledger: Ledger) -> None:
    run, other = [await ledger.enqueue(order, order="red shoes") for _ in range(2)]
    for each in (run, other):
        await record_steps(ledger, each, "reserve")
    there, offer = f"/jobs/orders/{run.id}", "whatever failed, wherever it is"
    assert offer not in (await http.get(f"/jobs/orders/{other.id}")).text  # it may still go on
    error = ErrorInfo(kind="exception", type="ValueError", message="no")
    await ledger.execute(
        run.ref, Fail(epoch=(await run.snapshot()).claim_epoch, error=error, give_up="rejected")
    )
    assert offer in (await http.get(there)).text
    plan = await http.get(f"{there}/rerun", params={"step": "", "as_it_was": ""})
    check_page(plan)
    assert ("Begin again what failed" in plan.text, "only what had not completed" in plan.text) == (
        True,
        True,
    )
    begun = await http.post(f"{there}/rerun", data={**hidden_fields(plan.text), "reason": "the bank is open"})
    assert begun.status_code == 303
    made = await ledger.job(begun.headers["location"].rpartition("/")[2])
    rerun_of = (await made.snapshot()).order.rerun_of
    assert rerun_of is not None
    assert (rerun_of.job, rerun_of.from_step, rerun_of.steps) == (run.id, "", 1)
    shown = await http.get(begun.headers["location"])
    check_page(shown)
    assert "with what had completed" in shown.text


async def test_the_page_of_an_archived_job_says_how_it_ended_and_where_it_is(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger, tmp_path: Path
) -> None:
    job = await ledger.enqueue(order.options(correlation="c-1"), order="77")
    await ledger.cancel(job, reason="not wanted")
    await gateway.rows.catch_up()
    deps = archive_deps(ledger, by="ann", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, tmp_path / "archive", deps).run(datetime.now(UTC))
    page = await http.get(f"/jobs/orders/{job.id}")
    check_page(page)
    assert page.status_code == 200
    for word in (
        "Cancelled",
        "c-1",
        "were archived",
        f"<code>jobledger jobs show {job.id} --archive DIR</code>",
    ):
        assert word in page.text, word
    assert 'method="post"' not in page.text
    none = await http.get("/jobs/orders/nobody")
    assert (none.status_code, "--archive DIR" in none.text) == (404, True)
    gateway.access = Someone("viewer", queues=("mail",))
    assert (await http.get(f"/jobs/orders/{job.id}")).status_code == 403


async def test_what_a_job_waits_for_is_linked_and_ended_on_its_page(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger
) -> None:
    await ledger.pause_queue("shut", by="ann")
    shut = await ledger.enqueue(order.options(queue="shut"), order="77")
    held = await ledger.enqueue(order.options(limits=["bank:acme"]), order="78")
    await waiting_runs.for_a_dead_child(ledger, "import")
    pages: dict[str, tuple[str, str, dict[str, str]]] = {
        f"/jobs/shut/{shut.id}": ("/queues#shut", "/queues/shut/resume", {}),
        f"/jobs/orders/{held.id}": ("/limits#bank", "/limits/set", {"slots": "2"}),
        "/jobs/orders/import": ("/jobs/pages/import-2-1", "/jobs/pages/import-2-1/requeue", {}),
    }
    for here, (link, action, fields) in pages.items():
        page = await http.get(here)
        check_page(page)
        why = page.text.partition('class="why"')[2].partition("</p>")[0]
        assert f'href="{link}"' in why, here
        (form,) = (each for each in Forms(page.text).found if each.action == action)
        peek = (await http.get(f"{here}/peek")).text
        assert f'href="{link}"' in peek, here
        for someone in (Someone("viewer"), Someone("operator", ("orders", "shut", "pages"))):
            gateway.access, access = someone, gateway.access
            text = (await http.get(here)).text
            refused = someone.one.may("manage") is False or action == "/limits/set"
            assert (f'action="{action}"' in text) is not refused, (here, someone.one.permissions)
            gateway.access = access
        answer = await http.post(action, data={**form.fields, **fields, "reason": "mended"})
        assert answer.status_code == 303, answer.text
        assert f'action="{action}"' not in (await http.get(here)).text, here


async def test_a_schedule_has_its_last_ticks_with_what_became_of_their_jobs(
    http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger
) -> None:
    await ledger.schedules.add("nightly", order, input={"order": "1"}, every_s=3600)
    now = ledger.clock.now()
    first, *_, last = await ledger.schedules.backfill("nightly", now - timedelta(hours=3), now)
    await ledger.cancel(first)
    await gateway.rows.catch_up()
    page = await http.get("/schedules")
    check_page(page)
    told = re.findall(r'class="tick" href="([^"]+)" title="([^"]+)"', page.text)
    assert [link for link, _ in told][:: len(told) - 1] == [
        f"/jobs/orders/{each.job_id}" for each in (first, last)
    ]
    assert re.search(r" UTC, .+ late: cancelled$", told[0][1])
    assert told[-1][1].endswith("late: queued")


@step
async def give_back(_order: str) -> None:
    """Undo what was reserved."""


@step
async def print_label(order: str) -> str:
    raise RuntimeError(f"no label for order {order}")


@workflow(queue="orders", max_attempts=1)
async def ship(run: Run, order: str) -> str:
    run.on_failure(give_back, order)
    return await run.step(print_label, order)


async def test_a_run_that_was_undone_says_so_and_shows_no_step_that_is_tried_again(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    async with working(ledger, ship):
        job = await ledger.enqueue(ship.options(id="order-13"), "13")
        with pytest.raises(JobFailedError):
            await job.result(timeout_s=LIMIT_S)
    page = await http.get("/jobs/orders/order-13")
    check_page(page)
    assert "undoing begins: RuntimeError: " in page.text
    assert "retrying" not in page.text
    assert re.search(
        r"print_label: failed\n[^<]*\n\d\d:\d\d:\d\d\.\d{3} to \d\d:\d\d:\d\d\.\d{3}<", page.text
    )
