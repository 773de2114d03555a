"""The pages as they are sent: without a browser, for every role, with hostile texts in every field."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any
from urllib.parse import quote

import anyio.to_thread
import httpx
import pytest
from tests.support.command_line import CommandLine
from tests.support.dashboard import HOSTILE, Someone, check_page, hidden_fields, token_of
from tests.support.limits import LIMIT_S
from tests.support.verbs import hourly
from tests.support.working import bury, working

from jobledger.admin.keys import list_keys
from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.acts.verification import verify_task
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.ledger import JobRef, Ledger, task
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.rights.grants import ROLES, Role
from jobledger.ledger.nats.task_book import TaskEntry, write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@task(queue="mail", max_attempts=1)
async def send(to: str) -> None:
    """Be enqueued only."""


@pytest.fixture
async def job(ledger: Ledger) -> JobHandle[None]:
    """One job whose texts are all hostile."""
    sending = send.options(correlation=HOSTILE.replace(" ", ""), tenant="t1", metadata={"note": HOSTILE})
    entry = TaskEntry(
        name="send",
        queue="mail",
        text=HOSTILE,
        input={"type": "object", "properties": {"to": {"type": "string", "description": HOSTILE}}},
        worker="w",
        announced_at=ledger.clock.now(),
    )
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    made = await ledger.enqueue(sending, to=HOSTILE)
    await ledger.enqueue(send.options(delay_s=3600), to=HOSTILE)
    return made


def addresses(job: JobHandle[None]) -> list[str]:
    """Return an address of every page."""
    words = {"queue": "mail", "id": job.id, "task": "send"}
    more = {"/plan": "?state=queued", "/jobs/{queue}/{id}/rerun": "?step=pay"}
    return [page.path.format(**words) + more.get(page.path, "") for page in PAGES]


@pytest.mark.parametrize("role", sorted(ROLES))
async def test_every_page_is_safe_for_every_role(
    gateway: Gateway, http: httpx.AsyncClient, job: JobHandle[None], role: Role
) -> None:
    gateway.access = Someone(role)
    for page, address in zip(PAGES, addresses(job), strict=True):
        answer = await http.get(address)
        needed = "review" if page.path == "/plan" else page.permission
        allowed = needed is None or needed in ROLES[role]
        shown = {"/rerun": 400, "/rows": 404}.get(
            page.path[page.path.rindex("/") :], 200
        )  # this job is no run
        assert answer.status_code == (shown if allowed else 403), address
        check_page(answer)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


async def test_pages_of_an_empty_ledger_are_there(http: httpx.AsyncClient) -> None:
    for page in PAGES:
        if "{" not in page.path and page.path != "/plan":
            answer = await http.get(page.path)
            assert answer.status_code == 200, page.path
            check_page(answer)


async def test_values_are_hidden_from_who_may_not_see_them(
    gateway: Gateway, http: httpx.AsyncClient, ledger: Ledger
) -> None:
    made = await ledger.enqueue(send, to="ann@example.com")
    seen = [(await http.get(each)).text for each in addresses(made)]
    assert sum("ann@example.com" in text for text in seen) == 3  # the list, the job, and a look into it
    gateway.access = Someone("viewer")
    for address in addresses(made):
        assert "ann@example.com" not in (await http.get(address)).text, address
    gateway.access = Someone("operator", without=("payloads",))
    token = token_of((await http.get(f"/jobs/mail/{made.id}")).text)
    by_value = {"verb": "cancel", "q": "to=ann@example.com"}  # whether a search finds it tells what it is
    for answer in (
        await http.get("/jobs", params={"q": by_value["q"]}),
        await http.get("/plan", params=by_value),
        await http.post("/plan", data={**by_value, "token": token, "before": "9", "reason": "x"}),
        await http.post(
            f"/jobs/mail/{made.id}/requeue", data={"token": token, "reason": "x", "input": '{"to": "bob"}'}
        ),
    ):
        assert answer.status_code == 403, answer.url
        assert "payloads" in answer.text


async def test_who_has_a_scope_sees_no_other_queue(
    gateway: Gateway, http: httpx.AsyncClient, ledger: Ledger
) -> None:
    await ledger.enqueue(send.options(queue="secret"), to="ann")
    made = await ledger.enqueue(send.options(queue="other"), to="ann")
    gateway.access = Someone("operator", queues=("mail",))
    for page in PAGES:
        if "{" not in page.path and page.path != "/plan":
            assert "secret" not in (await http.get(page.path)).text, page.path
    assert (await http.get(f"/jobs/other/{made.id}")).status_code == 404


async def test_an_act_is_in_the_ledger_with_who_and_why(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    address = f"/jobs/mail/{job.id}"
    token = token_of((await http.get(address)).text)
    answer = await http.post(f"{address}/cancel", data={"token": token, "reason": "too late"})
    assert (answer.status_code, answer.headers["location"]) == (303, address)
    last = (await job.history())[-1].event
    assert (await job.state(), last.by[:6], getattr(last, "reason", "")) == (
        JobState.CANCELLED,
        "local:",
        "too late",
    )
    assert "Cancelled" in (await http.get(address)).text  # no older rendering is shown to who acted
    again = await http.post(f"{address}/cancel", data={"token": token, "reason": "again"})
    assert again.status_code == 409
    check_page(again)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, "wrong"),
        ({}, ""),
        ({"content-type": "text/plain"}, None),
    ],
)
async def test_a_form_of_another_site_does_nothing(
    http: httpx.AsyncClient, job: JobHandle[None], headers: dict[str, str], token: str | None
) -> None:
    address = f"/jobs/mail/{job.id}"
    own = token_of((await http.get(address)).text)
    sent = {"token": own if token is None else token, "reason": "x"}
    answer = await http.post(f"{address}/cancel", data=sent, headers=headers)
    assert answer.status_code in {400, 403}
    assert await job.state() is JobState.QUEUED


async def test_every_form_refuses_who_lacks_its_permission(
    gateway: Gateway, http: httpx.AsyncClient, job: JobHandle[None]
) -> None:
    gateway.access = Someone("admin")
    token = token_of((await http.get(f"/jobs/mail/{job.id}")).text)
    gateway.access = Someone("viewer")
    for form in FORMS:
        address = form.path.format(
            queue="mail",
            id=job.id,
            name="nightly",
            task="send",
            key="k",
            route="r",
            delivery="d",
            verb="cancel",
        )
        answer = await http.post(address, data={"token": token, "verb": "cancel"})
        assert answer.status_code == 403, address
    assert await job.state() is JobState.QUEUED


async def test_a_job_is_shown_as_of_an_event_and_cannot_be_acted_on_there(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    first = (await job.history())[0].stream_sequence
    await ledger.cancel(job)
    then = (await http.get(f"/jobs/mail/{job.id}?sequence={first}")).text
    assert "You are looking at" in then
    assert "Queued" in then
    assert 'method="post"' not in then
    assert "data-live" not in then
    fleet = await http.get(f"/?sequence={first}")
    assert (fleet.status_code, "You are looking at" in fleet.text) == (200, True)


@pytest.mark.parametrize(
    ("address", "status", "word"),
    [
        ("/jobs/mail/none", 404, "none"),
        ("/?at=yesterday", 400, "write a moment as"),
        ("/?at=2026-01-01T00:00:00Z&sequence=1", 400, "one of them"),
        ("/?sequence=99999999", 400, ""),
        ("/?range=3y", 400, "range"),
        ("/jobs/..%2f..%2fetc/passwd", 404, ""),
    ],
)
async def test_what_cannot_be_shown_is_said_on_a_page(
    http: httpx.AsyncClient, job: JobHandle[None], address: str, status: int, word: str
) -> None:
    answer = await http.get(address)
    assert answer.status_code == status
    assert word in answer.text
    if not address.startswith("/jobs/.."):
        check_page(answer)


async def test_a_job_is_added_by_the_form_of_its_task(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    own = TaskEntry(
        name="their_own",
        queue="jobledger-acts",
        text="",
        input={},
        worker="w",
        announced_at=ledger.clock.now(),
    )
    await write_tasks(ledger.inbox, ledger.names, [own], replicas=1)
    listed = (await http.get("/tasks")).text
    assert ('href="/tasks/send' in listed, "their_own" in listed) == (
        True,
        False,
    )  # nobody adds the ledger's own
    token = token_of((await http.get("/tasks/send")).text)
    sent = {"token": token, "arg.to": "bob", "priority": "high", "delay_s": "60", "id": "by-hand"}
    answer = await http.post("/tasks/send/enqueue", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/mail/by-hand")
    made = await (await ledger.job("by-hand")).snapshot()
    assert (bytes(made.order.input), made.order.priority) == (b'{"to":"bob"}', "high")
    assert made.state is JobState.SCHEDULED
    shown = (await http.get("/jobs/mail/by-hand")).text
    assert "local:" in shown  # who asked
    wrong = await http.post("/tasks/send/enqueue", data={"token": token, "arg.to": "bob", "delay_s": "soon"})
    assert (wrong.status_code, "delay_s must be a number" in wrong.text) == (400, True)


async def test_a_queue_is_paused_and_resumed_by_name(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    token = token_of((await http.get("/queues")).text)
    sent = {"token": token, "reason": HOSTILE, "until": "5m"}
    assert (await http.post("/queues/mail/pause", data=sent)).status_code == 303
    state = await ledger.queue_state("mail")
    assert (state.paused, state.reason, state.until is not None) == (True, HOSTILE, True)
    page = await http.get("/queues")
    check_page(page)
    assert "paused" in page.text
    assert (await http.post("/queues/mail/resume", data={"token": token, "reason": "x"})).status_code == 303
    assert not (await ledger.queue_state("mail")).paused


async def test_a_limit_is_set_and_removed_by_a_form(http: httpx.AsyncClient, ledger: Ledger) -> None:
    token = token_of((await http.get("/limits")).text)
    sent = {"token": token, "limit": "mail", "slots": "3", "queues": "mail b*", "reason": "enough"}
    assert (await http.post("/limits/set", data=sent)).status_code == 303
    page = (await http.get("/limits")).text
    assert "slots 3; for queues b*, mail" in page
    assert (await http.post("/limits/set", data={**sent, "queues": "none"})).status_code == 303
    page = (await http.get("/limits")).text
    assert "; for queues" not in page
    assert "of 3" in page
    assert "enough" in page
    nothing = await http.post("/limits/set", data={"token": token, "limit": "mail", "reason": "x"})
    assert nothing.status_code == 400
    sent = {"token": token, "limit": "mail", "reason": "away"}
    assert (await http.post("/limits/remove", data=sent)).status_code == 303
    assert "No limit is set" in (await http.get("/limits")).text


async def test_a_limit_and_its_key_are_one_object_over_http_and_on_the_command_line(
    http: httpx.AsyncClient, nats_server: EmbeddedServer, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(nats_server.url, capsys)
    where = ("--environment", gateway.ledger.names.environment, "--json")
    for limit, number in (("api", 2), ("api:a.b:8?d=é", 3)):

        def run(limit: str = limit, number: int = number) -> dict[str, Any]:
            words = ("limits", "set", limit, "--slots", str(number), "--plan")
            (found,) = cli.run(*words, *where, "--url", nats_server.url).lines
            return found

        by_cli = await anyio.to_thread.run_sync(run)
        path = f"/v1/limits/{quote(limit, safe='')}"
        answer = await http.put(path, json={"slots": number})
        assert answer.json() == by_cli
        assert (await http.get(path)).json()["terms"] == by_cli["after"]
    parameters = (await http.get("/openapi.json")).json()["paths"]["/v1/limits/{limit}"]["put"]["parameters"]
    (pattern,) = [each["schema"]["pattern"] for each in parameters if each["name"] == "limit"]
    assert all(re.search(pattern, each) for each in ("api", "api:a.b:8?d=é"))
    assert not any(re.search(pattern, each) for each in ("", "a b", "api:", "api:a b", "a/b"))


async def test_a_form_without_a_reason_changes_nothing(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    token, head = token_of((await http.get("/queues")).text), await ledger.log.head()
    forms: dict[str, dict[str, str]] = {
        f"/jobs/mail/{job.id}/cancel": {},
        f"/jobs/mail/{job.id}/reschedule": {"delay_s": "5"},
        f"/jobs/mail/{job.id}/rerun": {"step": "ship"},
        "/queues/mail/pause": {"until": "5m"},
        "/queues/mail/resume": {},
        "/schedules/nightly/trigger": {},
        "/limits/set": {"limit": "mail", "slots": "3"},
        "/limits/remove": {"limit": "mail"},
        "/webhooks/shop/pause": {},
        "/graphs/onboarding/remove": {},
        "/webhooks/in/github/d1/retry": {},
        "/keys/create": {"name": "ann", "role": "viewer"},
        "/keys/0123456789ab/rotate": {},
        "/keys/0123456789ab/revoke": {},
        "/plan": {"verb": "cancel", "q": "to=ann", "before": "9"},
    }
    for path, fields in forms.items():
        answer = await http.post(path, data={"token": token, "reason": "  ", **fields})
        check_page(answer)
        assert answer.status_code == 400, path
        assert "give a reason: it is kept in the ledger with your name" in answer.text, path
    assert await ledger.log.head() == head
    noted = await http.post(f"/jobs/mail/{job.id}/note", data={"token": token, "text": "x"})
    assert noted.status_code == 303


async def test_the_forms_of_a_schedule_lead_to_its_job_and_back_to_the_list(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    await hourly(ledger, "nightly")
    sent = {"token": token_of((await http.get("/schedules")).text), "reason": "why"}
    made = await http.post("/schedules/nightly/trigger", data=sent)
    (job,) = re.findall(r"^/jobs/q/(nightly-manual-\d+)$", made.headers["location"])
    assert await (await ledger.job(JobRef(queue="q", job_id=job))).state() is JobState.QUEUED
    for verb, is_paused in (("pause", True), ("resume", False)):
        done = await http.post(f"/schedules/nightly/{verb}", data=sent)
        assert (done.status_code, done.headers["location"]) == (303, "/schedules")
        assert (await ledger.schedules.get("nightly")).paused is is_paused
    assert (await http.post("/schedules/other/pause", data=sent)).status_code == 404


async def test_the_secret_of_a_key_is_told_once(http: httpx.AsyncClient, ledger: Ledger) -> None:
    token = token_of((await http.get("/keys")).text)
    sent = {"token": token, "name": "ann", "role": "viewer", "queues": "mail, billing-*", "reason": "x"}
    made = await http.post("/keys/create", data=sent)
    check_page(made)
    secret = re.search(r"jl_\w{12}_[\w-]{43}", made.text)
    assert made.status_code == 200
    assert secret is not None
    assert made.headers["cache-control"] == "no-store"
    assert secret[0] not in (await http.get("/keys")).text
    (key,) = await list_keys(ledger)
    assert (key.name, key.role, key.queues) == ("ann", "viewer", ("billing-*", "mail"))
    rotated = await http.post(
        f"/keys/{key.key}/rotate", data={"token": token, "grace_s": "30m", "reason": "x"}
    )
    again = re.search(r"jl_\w{12}_[\w-]{43}", rotated.text)
    assert again is not None
    assert again[0] != secret[0]
    assert (await list_keys(ledger))[0].grace_until is not None
    gone = await http.post(f"/keys/{key.key}/revoke", data={"token": token, "reason": "x"})
    assert (gone.status_code, gone.headers["location"]) == (303, "/keys")
    assert await list_keys(ledger) == []


async def test_the_list_shows_what_fits(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    await ledger.enqueue(send, to="bob")
    rows = {"q=bob": 1, "q=to%3Dbob": 1, "state=queued": 2, "queue=none": 0, "task=send&q=nobody": 0}
    rows["state=queued&state=scheduled&queue=mail"] = 3
    for query, found in rows.items():
        text = (await http.get(f"/jobs?{query}")).text
        assert text.count('<tr id="r-mail-') == found, query
        assert (found == 0) == ("No job matches" in text), query


async def test_newer_jobs_are_counted_above_a_list_that_holds_still(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    top = re.search(r'data-top="([^"]+)"', (await http.get("/jobs")).text)
    assert top is not None
    for _ in range(3):
        await ledger.enqueue(send, to="bob")
    still = (await http.get("/jobs", params={"top": top[1]})).text
    assert "3 newer: show" in still
    assert still.count('<tr id="r-mail-') == 2
    show = re.search(r'data-newer href="([^"]+)"', still)
    assert show is not None
    # Soon after the first list, whose rendering is kept for a moment.
    shown = (await http.get(html.unescape(show[1]))).text
    assert shown.count('<tr id="r-mail-') == 5
    assert "newer: show" not in shown


async def test_pages_of_a_list_follow_each_other(http: httpx.AsyncClient, ledger: Ledger) -> None:
    await ledger.enqueue_many(send, ({"to": str(n)} for n in range(60)))
    first = (await http.get("/jobs")).text
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    second = (await http.get(older[1].replace("&amp;", "&"))).text
    ids = [re.findall(r'<tr id="(r-mail-[^"]+)"', text) for text in (first, second)]
    assert len({*ids[0], *ids[1]}) == 60
    assert "data-live" not in second


async def test_many_jobs_are_acted_on_as_they_were_planned(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    others = [await ledger.enqueue(send, to=f"bob{n}") for n in range(3)]
    assert 'action="/plan"' in (await http.get("/jobs?state=queued")).text
    planned = await http.get("/plan", params={"verb": "cancel", "state": "queued", "q": "bob"})
    check_page(planned)
    assert "3 of 3 jobs would be" in planned.text
    fields = hidden_fields(planned.text)
    await ledger.cancel(others[0])
    late = await ledger.enqueue(send, to="bob, after the plan")
    begun = [await http.post("/plan", data={**fields, "reason": "x"}) for _ in range(2)]
    assert {each.status_code for each in begun} == {303}
    assert len({each.headers["location"] for each in begun}) == 1  # sent twice, done once
    async with working(ledger, bulk_act), asyncio.timeout(LIMIT_S):
        doing = await ledger.job(begun[0].headers["location"].rpartition("/")[2])
        await doing.wait()
    assert (await doing.snapshot()).created_by.startswith("local:")
    assert [await each.state() for each in others] == [JobState.CANCELLED] * 3
    assert [await each.state() for each in (job, late)] == [JobState.QUEUED] * 2
    shown = await http.get(begun[0].headers["location"])
    check_page(shown)
    assert "Completed" in shown.text
    chosen = await http.get("/plan", params={"verb": "cancel", "what": "chosen", "job": f"mail/{late.id}"})
    assert "1 of 1 job would be" in chosen.text
    cancel = {"verb": "cancel"}
    for wrong in (
        cancel,
        {**cancel, "what": "chosen"},
        {"verb": "explode", "q": "bob"},
        {**cancel, "q": "stat:queued bob"},  # of what is not understood, nothing is left out
    ):
        assert (await http.get("/plan", params=wrong)).status_code == 400
    # What was typed relatively means the same when the form is sent.
    recent = await http.get("/plan", params={**cancel, "q": "since:1h state:open bob"})
    assert re.fullmatch(r"state:running state:queued .* since:20\S+Z bob", hidden_fields(recent.text)["q"])


async def test_the_slider_is_told_what_each_minute_held(
    http: httpx.AsyncClient, gateway: Gateway, job: JobHandle[None]
) -> None:
    found = (await http.get("/levels")).json()
    assert found["states"]["queued"][-1:] in ([1], [])
    assert len(found["minutes"]) == len(found["states"]["later"])
    gateway.access = Someone("viewer", queues=("other",))
    assert not any((await http.get("/levels")).json()["states"]["queued"])


async def test_the_ledger_is_checked_by_a_job(http: httpx.AsyncClient, ledger: Ledger) -> None:
    page = (await http.get("/ledger")).text
    assert "Check it now" in page
    begun = await http.post("/ledger/verify", data={"token": token_of(page)})
    assert begun.status_code == 303
    assert begun.headers["location"].startswith("/jobs/jobledger-acts/")
    async with working(ledger, verify_task()):
        job = await ledger.job(begun.headers["location"].rpartition("/")[2])
        await job.wait(timeout_s=LIMIT_S)
    assert "sound, up to event" in (await http.get("/ledger")).text


async def test_a_dead_letter_is_requeued_with_another_input(http: httpx.AsyncClient, ledger: Ledger) -> None:
    dead = [await ledger.enqueue(send, to="bob") for _ in range(2)]
    for each in dead:
        await bury(ledger, each)
    address = f"/jobs/mail/{dead[0].id}"
    page = (await http.get(address)).text
    before = re.search(r'name="input_before" value="([^"]+)"', page)
    assert before is not None
    sent = {"token": token_of(page), "reason": "mended", "attempts": "2", "input_before": before[1]}
    text = '{\r\n  "to": "bob"\r\n}'
    assert (await http.post(f"{address}/requeue", data={**sent, "input": text})).status_code == 303
    same = (await dead[0].history())[-1].event
    changed = await http.post(f"/jobs/mail/{dead[1].id}/requeue", data={**sent, "input": '{"to": "ann"}'})
    assert changed.status_code == 303
    other = (await dead[1].history())[-1].event
    assert isinstance(same, Queued)
    assert isinstance(other, Queued)
    assert (bytes(same.input), bytes(other.input)) == (b"", b'{"to":"ann"}')
    assert (other.by[:6], other.reason, other.cause) == ("local:", "mended", "requeued")
    assert "new input" in (await http.get("/acts")).text
    broken = await http.post(f"{address}/requeue", data={**sent, "input": "{"})
    assert (broken.status_code, "no JSON object" in broken.text) == (400, True)
