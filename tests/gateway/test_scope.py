"""Whoever is bound to some queues and tasks sees nothing of the others, in no list, count, stream or page, and changes nothing."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest
from tests.gateway.test_endpoints import BODIES
from tests.support.gateway import ADMIN, Asker, Doorman, send, someone
from tests.support.gateways import gateway_of
from tests.support.keyholders import code_of
from tests.support.working import bury, record_steps

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import NDJSON, Endpoint
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.ledger import Task, TaskRegistry, connect, task
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
BOUND = someone(*PERMISSIONS, queues=("mail",), tasks=("send",))
BOUND_TO_QUEUE = someone(*PERMISSIONS, queues=("mail",))
BOUND_TO_TASK = someone(*PERMISSIONS, tasks=("send",))


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
    works = WorkerInfo(
        worker="web-3-0c",
        host="web",
        pid=3,
        queues=("mail", "cellar"),
        tasks=("send", "cellar_stash", "cellar_flow@2"),
        started_at=ledger.clock.now(),
        renewed_at=ledger.clock.now(),
        jobs=("cellar-runs",),
    )
    await ledger.leases.renew(works, 0)
    await asker.announced(stash)
    await ledger.cancel("cellar-waits", queue="cellar", reason="cellar is full", by="ann")


async def _bury(asker: Asker, name: str) -> None:
    await bury(asker.ledger, await asker.ledger.enqueue(stash.options(id=name)))


@pytest.mark.parametrize("bound", [BOUND, BOUND_TO_QUEUE], ids=["both", "queue"])
async def test_what_is_out_of_scope_is_in_no_answer(asker: Asker, bound: Principal) -> None:
    await _fill(asker)
    shown: list[str] = []
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.public:
            continue
        path = endpoint.path
        about = "{" in path
        if bound is not BOUND and path.startswith(
            "/v1/unique/"
        ):  # a task of that name may have keys in its queue
            continue
        asker.door.who = bound
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


@pytest.mark.parametrize("bound", [BOUND, BOUND_TO_QUEUE], ids=["both", "queue"])
async def test_what_is_out_of_scope_is_on_no_page(asker: Asker, bound: Principal) -> None:
    await _fill(asker)
    shown: list[str] = []
    for page in PAGES:
        asker.door.who = bound
        answer = await asker.http.get(page.path.format_map(HIDDEN))
        if "{" in page.path:
            if answer.status_code not in {403, 404}:
                shown.append(f"{page.path}: {answer.status_code}")
        elif "cellar" in answer.text:
            at = answer.text.index("cellar")
            shown.append(f"{page.path}: ...{answer.text[max(0, at - 80) : at + 80]}")
    assert not shown, "\n".join(shown)


async def test_a_refusal_names_nothing_that_is_out_of_scope(asker: Asker) -> None:
    await _fill(asker)
    near: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"task": "cellar_stas"}),
        ("POST", "/v1/graphs", {"name": "g", "nodes": [{"name": "a", "task": "cellar_stas"}]}),
        ("PUT", "/v1/batches/b", {"task": "cellar_stas"}),
    ]
    for who in (BOUND_TO_QUEUE, BOUND_TO_TASK):  # neither that it came later than a moment, nor when
        never = await asker.sees("GET", "/v1/jobs/mail/none?sequence=1", "JOB_NOT_FOUND", who=who)
        hidden = await asker.sees("GET", "/v1/jobs/cellar/cellar-job?sequence=1", _code(who), who=who)
        if who is BOUND_TO_TASK:
            assert hidden.json()["detail"] == never.json()["detail"].replace("none", "cellar-job")
        for method, path, body in near:
            code = "TASK_NOT_FOUND" if who is BOUND_TO_QUEUE else "JOB_ACCESS_DENIED"
            refused = await asker.sees(method, path, code, json=body, who=who)
            assert "cellar_stash" not in refused.json()["detail"], path
    assert "cellar_stash" in (await asker.post("/v1/jobs", near[0][2], "TASK_NOT_FOUND"))["detail"]


def _code(who: Principal) -> str:
    return "JOB_NOT_FOUND" if who is BOUND_TO_TASK else "JOB_ACCESS_DENIED"


async def test_an_id_that_a_hidden_job_has_is_taken_and_tells_no_more(asker: Asker) -> None:
    await _fill(asker)
    await asker.announced(send)
    graph = {"name": "g", "id": "g-1", "nodes": [{"name": "a", "task": "send"}]}
    await asker.post("/v1/graphs", graph, 202)
    for path, body in (
        ("/v1/jobs", {"task": "send", "queue": "cellar", "id": "cellar-job"}),
        ("/v1/graphs", graph),
    ):
        refused = await asker.post(path, body, "DUPLICATE", who=BOUND_TO_TASK)
        assert set(refused) == {"type", "title", "status", "detail", "code", "request_id"}
    own = {**graph, "id": "g-2"}
    await asker.post("/v1/graphs", own, 202, who=BOUND_TO_TASK)
    assert not (await asker.post("/v1/graphs", own, 200, who=BOUND_TO_TASK))["created"]


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


#: As `HIDDEN`, and nothing of it was ever there.
ABSENT: Final = _Hidden(
    queue="cellar", task="absent_stash", name="absent-nightly", limit="api", id="absent-job"
)


async def test_what_is_hidden_by_its_task_is_as_if_it_were_not_there(asker: Asker) -> None:
    """Not even a refusal says which jobs, schedules and tasks there are: the answers differ by the names alone."""
    await _fill(asker)
    bound = someone(*PERMISSIONS, tasks=("send",))
    await _indexed(asker, bound)
    told: list[str] = []
    forms = [("POST", form.path) for form in FORMS] + [("GET", page.path) for page in PAGES]
    for method, path in [(each.method, each.path) for each in ENDPOINTS if not each.public] + forms:
        if method == "PUT" or not any(f"{{{word}}}" in path for word in ("id", "task", "name", "key")):
            continue
        answers: list[str] = []
        for names in (HIDDEN, ABSENT):
            asker.door.who = bound
            body: dict[str, Any] = (
                {"json": BODIES.get(f"{method} {path}", {})}
                if path.startswith("/v1")
                else {"data": {"token": "eve"}}
            )
            given: dict[str, Any] = {} if method == "GET" else body
            verb = "cancel" if path.startswith("/jobs") else "pause"
            address = path.replace("{verb}", verb).format_map(names)
            answer = await asker.http.request(method, address, **given)
            text = re.sub(r"\b[0-9a-f]{16}\b", "", answer.text)  # the request's id
            for word, name in names.items():
                text = text.replace(name, word) if word != "queue" else text
            answers.append(f"{answer.status_code} {text}")
        if answers[0] != answers[1]:
            told.append(f"{method} {path}:\n  {answers[0][:400]}\n  {answers[1][:400]}")
    assert not told, "\n".join(told)


async def _indexed(asker: Asker, bound: Principal) -> None:
    """Wait until lists know all there is."""
    head = (await asker.ledger.log.head()).last_sequence
    await asker.sees("GET", f"/v1/jobs?min_sequence={head}", 200, who=bound)


#: What each answer says of the ledger as a whole and of the moment, and the present age of what is shown.
_OF_THE_LEDGER: Final = {
    "position",
    "projection",
    "last_sequence",
    "stored_bytes",
    "head_hash",
    "started_at",
    "renewed_at",
    "since",
    "until",
    "enqueued_per_s",  # of the seconds that have passed, so it is another one a moment later
}
#: Sequences, ids, times and spans of time; and bars of a time in which nothing happened, as another minute may begin.
_PASSING: Final = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d to \d\d:\d\d\s+nothing\b|#[\d,]+|\b[0-9a-f]{16}\b|\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d)?|[\d.,]+ (ms|s|min|h)\b|\b(now|ago)\b"
)


@pytest.mark.parametrize("bound", [BOUND, BOUND_TO_QUEUE, BOUND_TO_TASK], ids=["both", "queue", "task"])
async def test_what_is_out_of_scope_is_in_no_figure(asker: Asker, bound: Principal) -> None:
    """Whatever is counted, the answers are the same before and after there is something hidden."""
    for act in (asker.job, asker.completed, asker.dead):
        await act()
    await asker.sees("PUT", "/v1/limits/api", 200, json={"slots": 1})
    lease = await _works(asker, 0, running=1)
    before = await _figures(asker, bound)
    if bound.tasks != ("*",):
        await _fill_with(asker, stash, "mail")
    if bound.queues != ("*",):
        await _fill_with(asker, send, "cellar")
    await _works(asker, lease, running=5)
    after = await _figures(asker, bound)
    told = [f"{path}: {_changed(before[path], said)}" for path, said in after.items() if said != before[path]]
    assert not told, "\n".join(told)
    asker.door.who = bound
    assert ((await asker.http.get("/levels")).json()["states"] == {}) is (bound.tasks != ("*",))
    await asker.sees(
        "POST",
        "/v1/queues/mail/drain",
        200 if bound is BOUND_TO_QUEUE else "JOB_ACCESS_DENIED",
        json={},
        who=bound,
    )


async def _works(asker: Asker, revision: int, *, running: int) -> int:
    """Let a worker say how many jobs it runs; return the revision of its lease."""
    ledger, now = asker.ledger, asker.ledger.clock.now()
    said = WorkerInfo(
        worker="web-4-0d",
        host="web",
        pid=4,
        queues=("mail",),
        started_at=now,
        renewed_at=now,
        running=running,
    )
    return await ledger.leases.renew(said, revision)


async def _fill_with(asker: Asker, of: Task[..., Any], queue: str) -> None:
    """Put jobs of a task in every state into a queue, and a run."""
    for act in (asker.job, asker.completed, asker.dead):
        await act(of, queue=queue)
    await asker.running(await asker.job(of, queue=queue))
    await asker.ledger.enqueue(of.options(queue=queue, delay_s=600))
    for limit in ("api", "api", "nobody-set-it"):
        await asker.ledger.enqueue(of.options(queue=queue, limits=[limit]))
    await record_steps(asker.ledger, await asker.job(of, queue=queue), "pack")
    cancelled = await asker.job(of, queue=queue)
    await asker.ledger.cancel(cancelled.id, queue=queue, reason="not wanted", by="ann")


async def _figures(asker: Asker, bound: Principal) -> dict[str, Any]:
    """Return what all lists, counts and pages say, without what is of the ledger as a whole."""
    asker = Asker(
        asker.gateway, ENDPOINTS, asker.door, asker.folder
    )  # which keeps nothing of earlier answers
    await _indexed(asker, bound)
    asker.door.who = bound
    said: dict[str, Any] = {}
    names = {"queue": "mail", "task": "send", "limit": "api"}
    paths = [each.path for each in ENDPOINTS if each.method == "GET" and not each.public]
    for path in [*paths, "/v1/stats/buckets?limit=2"]:
        if path != "/v1/events" and set(re.findall(r"{(\w+)}", path)) <= names.keys():
            answer = await asker.http.get(path.format_map(names))
            said[path] = _lasting(answer.json()) if answer.status_code == 200 else answer.status_code
    pages = [each.path for each in PAGES if "{" not in each.path and each.path != "/ledger"]
    for path in pages:
        text = (await asker.http.get(path)).text
        labels = " ".join(re.findall(r'(?:aria-label|title)="([^"]*)"', text))
        words = re.sub(r"<[^>]*>", " ", text)
        said[path] = Counter(_PASSING.sub("", f"{words} {labels}").split())
    asker.door.who = ADMIN
    return said


def _changed(before: Any, after: Any) -> Any:
    """Return what differs: of the words of a page only those."""
    if not isinstance(after, Counter):
        return before, after
    words = cast("Counter[str]", after)
    return (words - before) | (before - words)


def _lasting(value: Any) -> Any:
    """Return an answer without what changes with whatever happens in the ledger."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _lasting(each) for name, each in fields.items() if name not in _OF_THE_LEDGER}
    if isinstance(value, (list, tuple)):
        return [_lasting(each) for each in cast("Sequence[Any]", value)]
    return value
