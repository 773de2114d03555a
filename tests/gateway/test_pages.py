"""The pages as they are sent: without a browser, for every role, with hostile texts in every field."""

from __future__ import annotations

import re

import httpx
import pytest

from jobledger.gateway.access.local import LocalAccess
from jobledger.gateway.access.permissions import ROLES, Principal, Role
from jobledger.gateway.pages.serving import POLICY
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.gateway.parts import Gateway
from jobledger.ledger import Ledger, task
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.job import JobState

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"


@task(queue="mail", max_attempts=1)
async def send(to: str) -> None:
    """Be enqueued only."""


class Someone(LocalAccess):
    """Lets everybody in as one of some roles."""

    def __init__(self, role: Role, queues: tuple[str, ...] = ("*",)) -> None:
        super().__init__()
        self.one = Principal(name=f"ann {HOSTILE}", permissions=ROLES[role], queues=queues)

    def principal(self, connection: object) -> Principal:
        return self.one


@pytest.fixture
async def job(ledger: Ledger) -> JobHandle[None]:
    """One job whose texts are all hostile."""
    sending = send.options(correlation=HOSTILE.replace(" ", ""), tenant="t1", metadata={"note": HOSTILE})
    made = await ledger.enqueue(sending, to=HOSTILE)
    await ledger.enqueue(send.options(delay_s=3600), to=HOSTILE)
    return made


def addresses(job: JobHandle[None]) -> list[str]:
    """Return an address of every page."""
    words = {"queue": "mail", "id": job.id}
    return [page.path.format(**words) for page in PAGES]


def token_of(text: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found is not None, "the page has no form"
    return found[1]


def check_page(answer: httpx.Response) -> None:
    """Look at what holds for every page."""
    text = answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>alert" not in text
    assert "<img" not in text
    assert " style=" not in text
    assert "<style" not in text
    assert not re.search(r"<[^>]+\son\w+=", text)
    assert all("src=" in each for each in re.findall(r"<script[^>]*>", text))
    for form in re.findall(r'<form[^>]*method="post".*?</form>', text, re.DOTALL):
        assert 'name="token"' in form
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "an id stands twice"


@pytest.mark.parametrize("role", sorted(ROLES))
async def test_every_page_is_safe_for_every_role(
    gateway: Gateway, http: httpx.AsyncClient, job: JobHandle[None], role: Role
) -> None:
    gateway.access = Someone(role)
    for page, address in zip(PAGES, addresses(job), strict=True):
        answer = await http.get(address)
        allowed = page.permission is None or page.permission in ROLES[role]
        assert answer.status_code == (200 if allowed else 403), address
        check_page(answer)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


async def test_pages_of_an_empty_ledger_are_there(http: httpx.AsyncClient) -> None:
    for page in PAGES:
        if "{" not in page.path:
            answer = await http.get(page.path)
            assert answer.status_code == 200, page.path
            check_page(answer)


async def test_values_are_hidden_from_who_may_not_see_them(
    gateway: Gateway, http: httpx.AsyncClient, ledger: Ledger
) -> None:
    made = await ledger.enqueue(send, to="ann@example.com")
    seen = [(await http.get(each)).text for each in addresses(made)]
    assert any("ann@example.com" in text for text in seen)
    gateway.access = Someone("viewer")
    for address in addresses(made):
        assert "ann@example.com" not in (await http.get(address)).text, address


async def test_who_has_a_scope_sees_no_other_queue(
    gateway: Gateway, http: httpx.AsyncClient, ledger: Ledger
) -> None:
    await ledger.enqueue(send.options(queue="secret"), to="ann")
    made = await ledger.enqueue(send.options(queue="other"), to="ann")
    gateway.access = Someone("operator", queues=("mail",))
    for page in PAGES:
        if "{" not in page.path:
            assert "secret" not in (await http.get(page.path)).text, page.path
    assert (await http.get(f"/jobs/other/{made.id}")).status_code == 403


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
            queue="mail", id=job.id, name="nightly", verb="pause" if "schedules" in form.path else "cancel"
        )
        answer = await http.post(address, data={"token": token})
        assert answer.status_code == 403, address
    assert await job.state() is JobState.QUEUED


async def test_a_job_is_shown_as_of_an_event_and_cannot_be_acted_on_there(
    http: httpx.AsyncClient, ledger: Ledger, job: JobHandle[None]
) -> None:
    first = (await job.history())[0].stream_sequence
    await ledger.cancel(job)
    then = (await http.get(f"/jobs/mail/{job.id}?sequence={first}")).text
    assert "As of event" in then
    assert "Queued" in then
    assert 'method="post"' not in then
    assert "data-live" not in then
    fleet = await http.get(f"/?sequence={first}")
    assert (fleet.status_code, "the past, exactly" in fleet.text) == (200, True)


@pytest.mark.parametrize(
    ("address", "status", "word"),
    [
        ("/jobs/mail/none", 404, "none"),
        ("/?at=yesterday", 400, "write a moment as"),
        ("/?at=2026-01-01T00:00:00Z&sequence=1", 400, "one of them"),
        ("/?sequence=99999999", 400, ""),
        ("/?span=3y", 400, "span"),
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
