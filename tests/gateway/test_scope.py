"""Whoever is bound to some queues and tasks sees nothing of the others, in no list, count, stream or page, and changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.gateway.test_endpoints import BODIES
from tests.support.gateway import Asker, Doorman, someone
from tests.support.gateways import gateway_of
from tests.support.keyholders import code_of
from tests.support.working import bury

from jobledger.gateway.access.permissions import PERMISSIONS
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import NDJSON, Endpoint
from jobledger.gateway.pages.table import PAGES
from jobledger.ledger import TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
BOUND = someone(*PERMISSIONS, queues=("mail",), tasks=("send",))


#: What is hidden from it: each has the word in its name.
class _Hidden(dict[str, str]):
    """What stands for the words in braces of an address."""

    def __missing__(self, word: str) -> str:
        return f"cellar-{word}"


HIDDEN: Final = _Hidden(
    queue="cellar", task="cellar_stash", name="cellar-nightly", limit="api", id="cellar-job"
)
#: Whoever asks for it gets what is due in its own scope.
OWN_ALONE: Final = {"POST /v1/schedules/handle"}
#: What asks for something hidden in its body.
ABOUT_HIDDEN: Final[dict[str, dict[str, Any]]] = {
    "POST /v1/acts": {"json": {"act": "cancel", "filter": {"queue": "cellar"}}},
    "POST /v1/jobs": {"json": {"task": "cellar_stash", "queue": "cellar", "input": {}}},
    "POST /v1/jobs/bulk": {
        "content": b'{"task": "cellar_stash", "queue": "cellar", "input": {}}\n',
        "headers": {"content-type": NDJSON},
    },
}
DENIED: Final = {"JOB_ACCESS_DENIED", "JOB_NOT_FOUND", "NOT_FOUND", "TASK_NOT_FOUND"}


@task(queue="cellar", name="cellar_stash", max_attempts=1)
async def stash(what: str = "cellar gold") -> str:
    """Put something into the cellar."""
    return f"{what} lies in the cellar"


@pytest.fixture
async def asker(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Asker]:
    environment = f"t_{secrets.token_hex(6)}"
    async with (
        connect(nats_server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger,
        gateway_of(ledger, tmp_path) as gateway,
    ):
        gateway.access = door = Doorman()
        gateway.tasks = TaskRegistry([stash])
        yield Asker(gateway, ENDPOINTS, door, tmp_path)


async def _fill(asker: Asker) -> None:
    """Put jobs in every state into the hidden queue, and a schedule, a limit and a pause."""
    ledger = asker.ledger
    for act in (asker.job, asker.completed, asker.dead):
        await act()
    await ledger.enqueue(stash.options(id="cellar-job"))
    await asker.running(await ledger.enqueue(stash.options(id="cellar-runs")))
    await ledger.enqueue(stash.options(id="cellar-waits", delay_s=600))
    for name in ("cellar-dead", "cellar-dead-2"):
        await _bury(asker, name)
    await ledger.enqueue(stash.options(id="cellar-held", limits=["api"]))
    await asker.sees("PUT", "/v1/limits/api", 200, json={"slots": 0})
    await ledger.schedules.add("cellar-nightly", stash, input={"what": "cellar wine"}, every_s=3600, by="ann")
    await ledger.pause_queue("cellar", reason="cellar is wet", by="ann")
    await ledger.cancel("cellar-waits", queue="cellar", reason="cellar is full", by="ann")


async def _bury(asker: Asker, name: str) -> None:
    await bury(asker.ledger, await asker.ledger.enqueue(stash.options(id=name)))


async def test_what_is_out_of_scope_is_in_no_answer(asker: Asker) -> None:
    await _fill(asker)
    shown: list[str] = []
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.public:
            continue
        path = endpoint.path
        about = "{" in path
        asker.door.who = BOUND
        answer = await asker.http.get(
            path.format_map(HIDDEN), params=_params(endpoint), headers={"accept": NDJSON}
        )
        if endpoint.path == "/v1/limits/{limit}":  # its definition belongs to no queue, those who hold it do
            about = False
        if about and code_of(answer) not in DENIED:
            shown.append(f"{path}: {answer.status_code} {answer.text[:300]}")
        if not about and "cellar" in answer.text:
            at = answer.text.index("cellar")
            shown.append(f"{path}: ...{answer.text[max(0, at - 80) : at + 80]}")
    assert not shown, "\n".join(shown)


def _params(endpoint: Endpoint) -> dict[str, Any]:
    return {"from": 1} if endpoint.path == "/v1/events" else {}


async def test_what_is_out_of_scope_is_on_no_page(asker: Asker) -> None:
    await _fill(asker)
    shown: list[str] = []
    for page in PAGES:
        asker.door.who = BOUND
        answer = await asker.http.get(page.path.format_map(HIDDEN))
        if "{" in page.path:
            if answer.status_code not in {403, 404}:
                shown.append(f"{page.path}: {answer.status_code}")
        elif "cellar" in answer.text:
            at = answer.text.index("cellar")
            shown.append(f"{page.path}: ...{answer.text[max(0, at - 80) : at + 80]}")
    assert not shown, "\n".join(shown)


async def test_nothing_out_of_scope_can_be_changed(asker: Asker) -> None:
    await _fill(asker)
    before = (await asker.ledger.log.head()).last_sequence
    done: list[str] = []
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" or endpoint.public:
            continue
        named = f"{endpoint.method} {endpoint.path}"
        path = endpoint.path.format_map(HIDDEN)
        asker.door.who = BOUND
        request = ABOUT_HIDDEN.get(named)
        if request is None:
            request = {"json": BODIES.get(named, {})} if endpoint.body is not None else {}
        answer = await asker.http.request(endpoint.method, path, **request)
        if named == "POST /v1/acts" and answer.status_code == 200:  # a plan, of what is in its scope
            assert answer.json()["count"] == 0
        elif code_of(answer) not in DENIED and named not in OWN_ALONE:
            done.append(f"{named}: {answer.status_code} {answer.text[:200]}")
    assert not done, "\n".join(done)
    assert (await asker.ledger.log.head()).last_sequence == before
