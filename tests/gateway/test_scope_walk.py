"""Nobody gets a value, a secret or a job that they may not see: by no endpoint, no page and no stream, whatever the key."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
import pytest
from starlette.types import ASGIApp, Message
from tests.gateway.cases import routes as cases_of_routes
from tests.support.every_request import Names, Request, acts, reads, sent_forms
from tests.support.gateway import Asker, Doorman, send, someone
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S
from tests.support.open_gateway import OwnProjection
from tests.support.working import bury, working

from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.keys import Grant, create_key
from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.app import app
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.gateway.http.router import Table
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.ledger import Context, Job, JobState, Ledger, TaskRegistry, Unique, connect, task
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import (
    Checkpoint,
    Claim,
    Complete,
    CompleteStep,
    ConfirmCancel,
    FailStep,
    Fence,
    GiveSignal,
    Interrupt,
    Note,
    Pause,
    RefuseSignal,
    ReportProgress,
    RequestPause,
    Snooze,
    StartStep,
)
from jobledger.ledger.model.events import EVENT_TYPES, ErrorInfo
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.job import OPERATOR
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS
from jobledger.ledger.model.runs.orders import ChildNode, ChildOrder
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.workers.reactors.children.creation import ChildOpener

pytestmark = pytest.mark.anyio

#: Inputs, results, checkpoints, arguments of unique keys, what signals and deliveries say.
PAYLOAD: Final = "p4yl04d"
#: Of URLs and headers.
SECRET: Final = "t0k3n"
#: In the names of jobs: of another queue, of another task, of both.
ELSEWHERE: Final = {"qu3u3d": ("cellar", "send"), "t45k3d": ("mail", "stash"), "b0th": ("vault", "hold")}

#: Not there any more, and not in this state: what decides about an act said so.
_DECIDED: Final = frozenset({404, 409})

#: Events that nothing makes here: an archive run, a reactor that counts children, a worker that is lost.
_UNTOLD: Final = ["carried", "joined", "lost"]

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


_SAID: Final = msgspec.Raw(msgspec.json.encode({"to": PAYLOAD}))


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


class Standing:
    """The rows of a ledger in which nothing happens: those of each moment are opened once, and not for each request."""

    def __init__(self, rows: Rows) -> None:
        self._own = OwnProjection(rows)
        self._views: dict[AsOf | None, View] = {}
        self._open = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def opened(self, past: AsOf | None = None, *, min_sequence: int = 0) -> AsyncGenerator[View, None]:
        """Open the rows; see `OwnProjection`."""
        del min_sequence
        if past not in self._views:
            self._views[past] = await self._open.enter_async_context(self._own.opened(past))
        yield self._views[past]

    async def close(self) -> None:
        """Close all of them."""
        await self._open.aclose()


@contextlib.asynccontextmanager
async def filled(asker: Asker) -> AsyncGenerator[None, None]:
    """Put every kind of marked value into the ledger; for the length of the block a worker runs a job elsewhere."""
    ledger, held = asker.ledger, asyncio.Event()

    @task(name="hold", queue="hall", limits=("api",))
    async def hold(context: Context, to: str) -> None:
        made = send.options(id="own-made", correlation="letters")
        await context.ledger.enqueue(made, to=to)
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
        await _named_elsewhere(ledger)
        await _told_everything(ledger)
        yield


async def _named_elsewhere(ledger: Ledger) -> None:
    """Have own jobs whose events name jobs elsewhere: a run that asked for one and ended, and what took one's place."""
    run = JobRef(queue="vault", job_id="b0th-run")
    order = ChildOrder(
        task="send", queue="mail", nodes=(ChildNode(task="send", queue="mail", id="own-child"),)
    )
    epoch = (await ledger.handle_of(run).snapshot()).claim_epoch
    items = msgspec.Raw(msgspec.json.encode([{"to": PAYLOAD}]))
    step = StartStep(epoch=epoch, step="b0th-step", kind="map", target="send", order=order, items=items)
    await ledger.execute(run, step)
    view = await load(ledger.log, run)
    assert view.job is not None, "it runs"
    await ChildOpener(ledger).open(run, view, "b0th-step", view.job.steps["b0th-step"].open, again=False)
    await ledger.cancel(run, reason="enough", by="ann")
    await ledger.execute(run, ConfirmCancel(epoch=epoch))
    assert "b0th-run" in (await _until(ledger, "own-child", JobState.CANCELLED)).cancel_reason
    await ledger.enqueue(send.options(id="own-replaced"), to=PAYLOAD)
    await ledger.cancel("own-replaced", queue="mail", reason="superseded by job b0th-run", by="ann")


async def _told_everything(ledger: Ledger) -> None:
    """Have an own job and an own dead letter to which happens whatever else can happen to one."""
    error = ErrorInfo(kind="exception", type="ValueError", message="no")
    job = (await ledger.enqueue(send.options(id="own-told"), to=PAYLOAD)).ref

    async def claimed() -> int:
        return (await ledger.execute(job, Claim(worker="w", lease_s=15))).claim_epoch

    epoch = await claimed()
    await ledger.execute(job, ReportProgress(epoch=epoch, done=1))
    await ledger.execute(job, FailStep(epoch=epoch, step="a", kind="step", target="a", error=error))
    await ledger.execute(job, StartStep(epoch=epoch, step="go", kind="wait", target="go"))
    await ledger.execute(job, GiveSignal(name="go", value=_SAID))
    [signal] = (await ledger.handle_of(job).snapshot()).signals
    refused = RefuseSignal(epoch=epoch, step="go", name="go", signal=signal.sequence, reason="no int")
    await ledger.execute(job, refused)
    await ledger.execute(job, Interrupt(epoch=epoch, reason="stops"))
    await ledger.execute(job, Fence(epoch=epoch, attempt=1, worker="w", outcome="completed"))
    await ledger.execute(job, Snooze(epoch=await claimed(), until=datetime(2030, 1, 1, tzinfo=UTC)))
    await ledger.retry(job, reason="now", by="ann")
    epoch = await claimed()
    await ledger.execute(job, RequestPause(reason="why"))
    await ledger.execute(job, Pause(epoch=epoch, event=OPERATOR))
    await ledger.execute(job, Note(text="seen"))
    gone = await ledger.enqueue(send.options(id="own-gone"), to=PAYLOAD)
    await bury(ledger, gone)
    await ledger.discard(gone.ref, reason="why", by="ann")
    await ledger.enqueue(send.options(id="own-later", delay_s=3600.0), to=PAYLOAD)


async def _until(ledger: Ledger, job_id: str, state: JobState) -> Job:
    """Return an own job once it is in a state."""
    ref = JobRef(queue="mail", job_id=job_id)
    async with asyncio.timeout(LIMIT_S):
        while (job := (await load(ledger.log, ref)).job) is None or job.state is not state:
            await asyncio.sleep(0.01)
    return job


async def _jobs(ledger: Ledger, queue: str, name: str, mark: str) -> None:
    """Have jobs of a queue and a task, whose ids begin with a mark, keep marked values wherever a job can."""

    def options(what: str) -> Any:
        # All that a run begins has its correlation, which is its id where nobody says another one.
        return made.options(id=f"{mark}-{what}", queue=queue, correlation="letters")

    @task(name=name, queue=queue, max_attempts=1)
    async def made(to: str) -> None:
        del to

    await ledger.enqueue(options("waits"), to=PAYLOAD)
    value = _SAID
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
        target=WebhookTarget(url=f"https://shop.example/services/T0/{SECRET}?key={SECRET}"),
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


#: The jobs, by what stands behind the mark in their ids.
_OWN: Final = ("done", "dead", "run", "unique", "held", "made", "child", "replaced", "waits")
_ACTED_ON: Final = ("waits", "dead", "done", "run")
_ENDING: Final = (
    "/pause",
    "/resume",
    "/reset",
    "/close",
    "/cancel",
    "/discard",
    "/remove",
    "/revoke",
    "DELETE",
)
_VALUES: Final[Mapping[str, Any]] = {
    "task": "send",
    "queue": "cellar",
    "input": {"to": "ann"},
    "name": "letters",
    "id": "qu3u3d-run",
    "job": "qu3u3d-run",
    "run": "b0th-run",
    "batch": "b0th-run",
    "correlation": "b0th-run",
    "q": "qu3u3d",
    "metadata": ["a=b"],
    "input_": ["to=ann"],
    "type": "completed",
    "events": ["completed"],
    "secret": "env:NEW",
    "count": 1,
}
#: Every field that a form reads.
FILLED: Final[Mapping[str, Any]] = {
    "token": "eve",
    "reason": "why",
    "until": "2100-01-01T00:00:00Z",
    "limit": "api",
    "slots": "2",
    "delay_s": "60",
    "text": "seen",
    "value": "1",
    "name": "go",
    "role": "viewer",
    "to": "ann",
    "verb": "cancel",
    "queue": "mail",
    "id": "",
    "before": "100000",
}


def names(own: Iterable[str], elsewhere: Iterable[str] = ("run",), key: str = "none") -> Names:
    """Return what there is: these own jobs, these elsewhere, and a key."""
    foreign = [(at[0], f"{mark}-{what}") for mark, at in ELSEWHERE.items() for what in elsewhere]
    marks = ("own", *ELSEWHERE)
    return Names(
        jobs=(*(("mail", f"own-{what}") for what in own), *foreign),
        words={
            "id": ("own-done", "b0th-run"),
            "id keys": (key,),
            "id acts": ("none",),
            "name": ("shop", "bills"),
            "name schedules": tuple(f"{mark}-nightly" for mark in marks),
            "name graphs": tuple(f"{mark}-graph" for mark in marks),
            "name signals": ("go",),
            "name jobs": ("go",),
            "name batches": ("letters",),
            "name watches": ("deep",),
            "name subscriptions": ("none",),
            "queue": ("mail", "cellar"),
            "task": ("send", "stash"),
            "limit": ("api",),
            "route": ("github",),
            "owner": ("person:17",),
            "delivery": ("d1",),
            "key keys": (key,),
            "key": ("none",),
        },
        values=_VALUES,
    )


class Told(NamedTuple):
    """What somebody was answered."""

    shape: str
    request: Request
    text: str
    status: int = 200

    def words(self, mark: str) -> str:
        """Return where a mark is in it."""
        at = self.text.index(mark)
        around = self.text[max(0, at - 90) : at + 60].replace("\n", " ")
        asked = f"{self.request.method} {self.request.path} {dict(self.request.params)}"
        return f"{self.shape}: {asked}: ...{around}..."


def leaks(answers: Iterable[Told]) -> list[str]:
    """Return a line for each answer with something that whoever asked may not see."""
    return [
        each.words(mark)
        for each in answers
        for mark in hidden_from(SHAPES[each.shape])
        if mark in each.text and mark not in f"{each.request.path} {each.request.params} {each.request.body}"
    ]


def ends(request: Request) -> int:
    """Return how much a request ends: what ends more is asked later, so that the others find something."""
    said = f"{request.method} {request.path}"
    return max((place for place, word in enumerate(_ENDING, 1) if word in said), default=0)


async def ask_all(asker: Asker, made: ASGIApp, asked: Iterable[Request]) -> list[Told]:
    """Return what each shape of key is answered to each request; who may do everything asks last."""
    told: list[Told] = []
    for shape, who in SHAPES.items():
        asker.door.who = who
        for request in asked:
            status, shown = await answered(made, request)
            assert '"INTERNAL"' not in shown, f"{shape}: {request}: {shown[:500]}"
            told.append(Told(shape, request, shown if request.path != "/v1/me" else "", status))
    return told


async def answered(made: ASGIApp, request: Request) -> tuple[int, str]:
    """Return the status of an answer, and its headers and body as text. No server and no client stand between."""
    status, parts = 0, list[str]()
    sent = iter([{"type": "http.request", "body": request.sent, "more_body": False}])

    async def give() -> Message:
        found = next(sent, None)
        if found is None:
            await asyncio.Event().wait()  # a client that stays
        assert found is not None, "it waits"
        return found

    async def take(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            parts.append(str(message["headers"]))
        else:
            parts.append(message.get("body", b"").decode())

    async with asyncio.timeout(LIMIT_S):
        await made(scope_of(request), give, take)
    return status, " ".join(parts)


def scope_of(request: Request) -> dict[str, Any]:
    """Return a request as ASGI tells it."""
    headers = {"host": "127.0.0.1:8080", "accept": request.accept, "content-type": request.media}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": urlencode(request.params, doseq=True).encode(),
        "headers": [
            (name.encode(), value.encode())
            for name, value in headers.items()
            if name != "content-type" or request.body is not None
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "root_path": "",
        "extensions": {},
    }


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

    scope = scope_of(Request("GET", path, params, "text/event-stream"))
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
    *({"type": each} for each in EVENT_TYPES),
)


@pytest.mark.timeout(150)  # thousands of requests
async def test_nobody_is_told_what_they_may_not_see(asker: Asker) -> None:
    made = app(asker.gateway)
    async with filled(asker):
        head = (await asker.ledger.log.head()).last_sequence
        asker.door.who = SHAPES["all"]
        await asker.http.get("/v1/jobs", params={"min_sequence": head})
        looked = list(reads(ENDPOINTS, PAGES, names(_OWN), head - 1))
        moving, asker.gateway.projection = asker.gateway.projection, Standing(asker.gateway.rows)
        answers = await ask_all(asker, made, looked)
        await asker.gateway.projection.close()
        asker.gateway.projection = moving
        key = (await create_key(asker.ledger, "ci", Grant(role="viewer"), by="ann")).info.key
        there = names(_ACTED_ON, _ACTED_ON, key)
        done = [*acts(ENDPOINTS, there), *sent_forms(FORMS, there, FILLED)]
        done.sort(key=ends)
        answers += await ask_all(asker, made, done)
        head = (await asker.ledger.log.head()).last_sequence
        streams = await ask_streams(asker, made, head)
    answers += streams
    found = leaks(answers)
    addresses = len(looked) + len(done) + len(FILTERS)
    print(  # noqa: T201 - how much was tried
        f"tried {len(answers):,} requests: {len(SHAPES)} shapes of keys, {len(looked)} addresses, {len(done)} acts and "
        f"forms, {len(FILTERS)} streams"
    )
    assert not found, f"{len(found)} leaks:\n" + "\n".join(found)
    assert len(answers) == len(SHAPES) * addresses
    marks = {PAYLOAD, SECRET, *ELSEWHERE}
    everything = "".join(each.text for each in answers if each.shape == "all")
    assert {mark for mark in marks if mark in everything} == marks, "else nothing was there to be hidden"
    check_reached(answers, done)
    told = {each for each in EVENT_TYPES if f"event: {each}\n" in streams[-len(FILTERS)].text}
    assert sorted(set(EVENT_TYPES) - told) == _UNTOLD, "else an event was not there to be told"


def check_reached(answers: Iterable[Told], done: Iterable[Request]) -> None:
    """Fail where an act or a form was refused to everybody before it looked at what it is about: then it was not tried."""
    reached = {each.request.of for each in answers if each.status < 400 or each.status in _DECIDED}
    idle = sorted({each.of for each in done} - reached)
    assert not idle, f"nobody was let do {idle}: fill in what they need"


async def ask_streams(asker: Asker, made: ASGIApp, head: int) -> list[Told]:
    """Return what each shape of key is told by each stream of events, from the first one on."""
    told: list[Told] = []
    for shape, who in SHAPES.items():
        for narrowed in FILTERS:
            asker.door.who = who
            params = {"from": 1, **narrowed}
            text = await streamed(made, "/v1/events", params, head)
            told.append(Told(shape, Request("GET", "/v1/events", params, "text/event-stream"), text))
    return told


async def test_a_planted_leak_is_found(asker: Asker) -> None:
    async def tell(_asked: ApiRequest) -> dict[str, str]:
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
    made = Table(asker.gateway, [planted], app(asker.gateway))
    answers = await ask_all(asker, made, list(reads([planted], [], names(("run",)), 1)))
    assert len(answers) == len(SHAPES)
    found = {line.partition(":")[0] for line in leaks(answers)}
    assert found == set(SHAPES) - {"view payloads", "queue", "all"}
