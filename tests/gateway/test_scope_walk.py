"""Nobody gets a value, a secret or a job that they may not see: by no endpoint, no page and no stream, whatever the key."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import httpx
import msgspec
import pytest
from starlette.types import ASGIApp, Message
from tests.gateway.cases import routes as cases_of_routes
from tests.support.gateway import BASE, Asker, Doorman, send, someone
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S
from tests.support.working import bury, working

from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.app import app
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import NDJSON, Endpoint
from jobledger.gateway.http.routing import Table
from jobledger.gateway.pages.page import Page
from jobledger.gateway.pages.table import PAGES
from jobledger.ledger import Ledger, TaskRegistry, Unique, connect, task
from jobledger.ledger.model.commands import Checkpoint, Claim, Complete, CompleteStep, GiveSignal, StartStep
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.secrets import Secrets

pytestmark = pytest.mark.anyio

#: Inputs, results, checkpoints, arguments of unique keys, what signals and deliveries say.
PAYLOAD: Final = "p4yl04d"
#: Of URLs and headers.
SECRET: Final = "t0k3n"
#: In the names of jobs: of another queue, of another task, of both.
ELSEWHERE: Final = {"qu3u3d": ("cellar", "send"), "t45k3d": ("mail", "stash"), "b0th": ("vault", "hold")}

SHAPES: Final[dict[str, Principal]] = {
    "view": someone("view"),
    "view payloads": someone("view", "payloads"),
    "view, queue": someone("view", queues=("mail",)),
    "view payloads, queue": someone("view", "payloads", queues=("mail",)),
    "view, task": someone("view", tasks=("send",)),
    "view payloads, task": someone("view", "payloads", tasks=("send",)),
    "view, both": someone("view", queues=("ma*",), tasks=("se*",)),
    "view payloads, both": someone("view", "payloads", queues=("mail",), tasks=("send",)),
    "queue": someone("queue"),
    "view manage": someone("view", "manage"),
    "all but payloads, task": someone(*set(PERMISSIONS) - {"payloads"}, tasks=("send",)),
    "all": someone(*PERMISSIONS),
}


@task(name="send", queue="mail", unique=Unique(args=("to",)))
async def send_once(to: str) -> None:
    """Send a letter that nobody else gets."""


@task(name="send", queue="mail")
async def send_what(to: str, what: str = "") -> None:
    """Send a letter of which a route says what is in it."""


@task(name="stash", queue="mail", max_attempts=1)
async def stash(to: str) -> None:
    """Put a letter away."""


def hidden_from(who: Principal) -> list[str]:
    """Return the markers that must be in nothing that somebody is answered."""
    found = [mark for mark, (queue, name) in ELSEWHERE.items() if not who.may("view", queue, name)]
    if not who.may("payloads"):
        found.append(PAYLOAD)
    if not (who.may("manage") and who.is_everywhere):
        found.append(SECRET)
    return found


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=64 << 20) as made:
        yield made


@pytest.fixture
async def asker(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Asker]:
    async with gateway_of(ledger, tmp_path) as gateway:
        gateway.access = door = Doorman()
        gateway.tasks = TaskRegistry([stash])
        yield Asker(gateway, ENDPOINTS, door, tmp_path)


@contextlib.asynccontextmanager
async def filled(asker: Asker) -> AsyncGenerator[None, None]:
    """Put every kind of marked value into the ledger; for the length of the block a worker runs a job elsewhere."""
    ledger, held = asker.ledger, asyncio.Event()

    @task(name="hold", queue="hall", limits=("api",))
    async def hold(to: str) -> None:
        await ledger.enqueue(send.options(id="own-made"), to=PAYLOAD)
        async with ledger.lock("safe", "b0th-lock"):
            held.set()
            await asyncio.Event().wait()

    await asker.announced(send_what, stash)
    await asker.sees("PUT", "/v1/limits/api", 200, json={"slots": 1})
    for where in (("mail", "send", "own"), *((*at, mark) for mark, at in ELSEWHERE.items())):
        await _jobs(ledger, *where)
    await _hooks(asker)
    async with working(ledger, hold, queues=("hall",), grace_s=0.1):
        await ledger.enqueue(hold.options(id="b0th-holds"), to=PAYLOAD)
        async with asyncio.timeout(LIMIT_S):
            await held.wait()
        await ledger.enqueue(send.options(id="own-held", limits=["api"]), to=PAYLOAD)
        yield


async def _jobs(ledger: Ledger, queue: str, name: str, mark: str) -> None:
    """Have jobs of a queue and a task, whose ids begin with a mark, keep marked values wherever a job can."""

    def options(what: str) -> Any:
        return made.options(id=f"{mark}-{what}", queue=queue)

    @task(name=name, queue=queue, max_attempts=1)
    async def made(to: str) -> None:
        del to

    await ledger.enqueue(options("waits"), to=PAYLOAD)
    value = msgspec.Raw(msgspec.json.encode({"of": PAYLOAD}))
    done = await ledger.enqueue(options("done"), to=PAYLOAD)
    epoch = (await ledger.execute(done.ref, Claim(worker="w", lease_s=15))).claim_epoch
    await ledger.execute(done.ref, Checkpoint(epoch=epoch, value=value))
    await ledger.execute(done.ref, Complete(epoch=epoch, result=value))
    dead = await ledger.enqueue(options("dead"), to=PAYLOAD)
    await bury(ledger, dead)
    await ledger.cancel(
        (await ledger.enqueue(options("not"), to=PAYLOAD)).id, queue=queue, reason=mark, by="ann"
    )
    run = await ledger.enqueue(options("run"), to=PAYLOAD)
    epoch = (await ledger.execute(run.ref, Claim(worker="w", lease_s=15))).claim_epoch
    await ledger.execute(run.ref, CompleteStep(epoch=epoch, step="a", kind="step", target="a", result=value))
    items = msgspec.Raw(msgspec.json.encode([{"to": PAYLOAD}]))
    order = ChildOrder(task=name, queue=queue)
    await ledger.execute(
        run.ref, StartStep(epoch=epoch, step="b", kind="call", target=name, order=order, items=items)
    )
    await ledger.execute(run.ref, GiveSignal(name="go", id="1", value=value))
    await ledger.schedules.add(
        f"{mark}-nightly", made.options(queue=queue), input={"to": PAYLOAD}, every_s=3600, by="ann"
    )
    await ledger.graphs.put(
        {
            "name": f"{mark}-graph",
            "nodes": [
                {
                    "name": "a",
                    "task": "stash" if name == "hold" else name,
                    "queue": queue,
                    "input": {"to": PAYLOAD},
                }
            ],
        },
        by="ann",
    )


async def _hooks(asker: Asker) -> None:
    """Have a unique key change hands, webhooks with secrets, and deliveries of both directions."""
    ledger = asker.ledger
    mine = await ledger.enqueue(send_once.options(id="own-unique"), to=PAYLOAD)
    await ledger.cancel(mine.id, queue="mail", reason="too late", by="ann")
    await ledger.enqueue(send_once.options(id="qu3u3d-unique", queue="cellar"), to=PAYLOAD)
    shop = WebhookDefinition(
        target=WebhookTarget(url=f"https://shop.example/hooks?key={SECRET}"),
        events=("completed",),
        secrets=("env:SHOP",),
        headers={"X-Key": SECRET},
    )
    bills = WebhookDefinition(
        target=WebhookTarget(task="send", queue="mail"), events=("completed",), queue="cellar"
    )
    for name, definition in {"shop": shop, "bills": bills}.items():
        await put_webhook(ledger, name, definition, by="ann")
    await ledger.enqueue(send.options(id="own-delivery", by="webhook:bills"), to=PAYLOAD)
    asker.gateway.secrets = Secrets({"NEW": "new", "OLD": "old"})
    said = {"to": {"header": "X-Customer"}, "what": {"value": PAYLOAD}}
    rules = [{"name": "all", "task": "send", "queue": "mail", "input": said}]
    await asker.sees("PUT", "/v1/routes/github", 200, json={**cases_of_routes.GITHUB, "rules": rules})
    pushed = cases_of_routes.pushed("d1")
    pushed["headers"]["x-customer"] = PAYLOAD
    await asker.sees("POST", "/in/github", 202, **pushed)


class Request(NamedTuple):
    """One address to look at."""

    path: str
    params: Mapping[str, Any]
    accept: str


def requests(endpoints: Iterable[Endpoint], pages: Iterable[Page]) -> list[Request]:
    """Return every address that can be looked at, with each name that its words stand for."""
    found: list[Request] = []
    for endpoint in endpoints:
        if endpoint.method == "GET" and endpoint.has_head and not endpoint.public:
            fields = () if endpoint.query is None else msgspec.structs.fields(endpoint.query)
            flags = [each.encode_name for each in fields if each.type is bool]
            asks: list[dict[str, Any]] = [{}, *({flag: "true"} for flag in flags)]
            if endpoint.path == "/v1/events":
                asks = [{"from": 1, "limit": 1_000}]
            found += [Request(path, each, NDJSON) for path in _named(endpoint.path) for each in asks]
    for page in pages:
        asks = [{}]
        if page.path == "/graphs":
            asks += [{"graph": f"{mark}-graph"} for mark in ("own", *ELSEWHERE)]
        found += [Request(path, each, "text/html") for path in _named(page.path) for each in asks]
    return found


#: The jobs, by what stands behind the mark in their ids.
_OWN: Final = ("done", "dead", "run", "unique", "held", "made")


def _named(path: str) -> list[str]:
    """Return an address with each set of names that its words in braces can stand for."""
    words = set(re.findall(r"{(\w+)}", path))
    if "id" in words and "{id}" in path and path.startswith(("/v1/jobs", "/v1/dead-letters", "/jobs")):
        found = [("mail", f"own-{what}") for what in _OWN]
        found += [(at[0], f"{mark}-run") for mark, at in ELSEWHERE.items()]
        return [path.format(queue=queue, id=job) for queue, job in found]
    marks = ("own", *ELSEWHERE)
    if "name" in words:
        kind = path.split("/")[2] if path.startswith("/v1/") else ""
        ends = {"schedules": "-nightly", "graphs": "-graph"}
        names = [f"{mark}{ends[kind]}" for mark in marks] if kind in ends else ["shop", "bills"]
        return [path.format(name=each) for each in names]
    given = {"queue": ("mail", "cellar"), "task": ("send", "stash"), "limit": ("api",), "route": ("github",)}
    one = {"delivery": "d1", "key": "none", "id": "none"}
    first = next((word for word in given if word in words), None)
    if first is None:
        return [path.format_map(one)] if words else [path]
    return [path.format_map({**one, first: each}) for each in given[first]]


class Told(NamedTuple):
    """What somebody was answered."""

    shape: str
    request: Request
    text: str

    def words(self, mark: str) -> str:
        """Return where a mark is in it."""
        at = self.text.index(mark)
        around = self.text[max(0, at - 90) : at + 60].replace("\n", " ")
        return f"{self.shape}: {self.request.path} {dict(self.request.params)}: ...{around}..."


def leaks(answers: Iterable[Told]) -> list[str]:
    """Return a line for each answer with something that whoever asked may not see."""
    return [
        each.words(mark)
        for each in answers
        for mark in hidden_from(SHAPES[each.shape])
        if mark in each.text and mark not in f"{each.request.path} {each.request.params}"
    ]


async def ask_all(asker: Asker, asked: Iterable[Request]) -> list[Told]:
    """Return what each shape of key is answered by each address."""
    told: list[Told] = []
    for shape, who in SHAPES.items():
        asker.door.who = who
        for request in asked:
            answer = await asker.http.get(
                request.path, params=dict(request.params), headers={"accept": request.accept}
            )
            assert '"INTERNAL"' not in answer.text, f"{shape}: {request.path}: {answer.text[:500]}"
            shown = f"{answer.text} {dict(answer.headers)}"
            told.append(Told(shape, request, shown if request.path != "/v1/me" else ""))
    return told


async def streamed(made: ASGIApp, path: str, params: Mapping[str, Any], until: int) -> str:
    """Return what a stream says up to a stream sequence, or all of one that is refused or ends."""
    said, there = "", asyncio.Event()

    async def take(message: Message) -> None:
        nonlocal said
        said += message.get("body", b"").decode()
        ids = re.findall(r"^id: (\d+)$", said, flags=re.MULTILINE)
        if (ids and int(ids[-1]) >= until) or (
            message["type"] == "http.response.body" and not message.get("more_body")
        ):
            there.set()

    async def give() -> Message:
        await there.wait()
        return {"type": "http.disconnect"}

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode(params).encode(),
        "headers": [(b"host", b"127.0.0.1:8080"), (b"accept", b"text/event-stream")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "extensions": {},
    }
    streaming: asyncio.Task[None] = asyncio.create_task(made(scope, give, take))  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S):
        await there.wait()
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    return said


#: What a stream of events may be narrowed to.
FILTERS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"queue": "mail"},
    {"task": "send"},
    {"job": "own-run"},
    {"type": "taken"},
)


async def test_nobody_is_told_what_they_may_not_see(asker: Asker) -> None:
    asked = requests(ENDPOINTS, PAGES)
    async with filled(asker):
        head = (await asker.ledger.log.head()).last_sequence
        asker.door.who = SHAPES["all"]
        await asker.http.get("/v1/jobs", params={"min_sequence": head})
        answers = await ask_all(asker, asked)
        answers += await ask_streams(asker, head)
    found = leaks(answers)
    print(  # noqa: T201 - how much was tried
        f"tried {len(answers):,} requests: {len(SHAPES)} shapes of keys, {len(asked) + len(FILTERS)} addresses"
    )
    assert not found, f"{len(found)} leaks:\n" + "\n".join(found)
    marks = {PAYLOAD, SECRET, *ELSEWHERE}
    everything = "".join(each.text for each in answers if each.shape == "all")
    assert {mark for mark in marks if mark in everything} == marks, "else nothing was there to be hidden"
    assert len(answers) == len(SHAPES) * (len(asked) + len(FILTERS))


async def ask_streams(asker: Asker, head: int) -> list[Told]:
    """Return what each shape of key is told by each stream of events, from the first one on."""
    told: list[Told] = []
    made = app(asker.gateway)
    for shape, who in SHAPES.items():
        for narrowed in FILTERS:
            asker.door.who = who
            params = {"from": 1, **narrowed}
            text = await streamed(made, "/v1/events", params, head)
            told.append(Told(shape, Request("/v1/events", params, "text/event-stream"), text))
    return told


async def test_a_planted_leak_is_found(asker: Asker) -> None:
    async def tell(_asked: Asked) -> dict[str, str]:
        return {"said": f"{PAYLOAD} of job b0th-run"}

    planted = Endpoint(
        method="GET",
        path="/v1/planted",
        permission="view",
        handler=tell,
        summary="Tell",
        tag="x",
        returns=Any,
    )
    transport = httpx.ASGITransport(Table(asker.gateway, [planted], app(asker.gateway)))
    asker.http = httpx.AsyncClient(transport=transport, base_url=BASE)
    answers = await ask_all(asker, requests([planted], []))
    assert len(answers) == len(SHAPES)
    found = {line.partition(":")[0] for line in leaks(answers)}
    assert found == set(SHAPES) - {"view payloads", "queue", "all"}
