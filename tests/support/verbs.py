"""An example of each verb: what is wished for, and what a ledger must hold before."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jobledger.admin.hooks.routes import definition_of, set_route
from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.verbs.graphs import GivenGraph, ListGraphs, PutGraph, RemoveGraph, ShowGraph
from jobledger.admin.verbs.jobs import (
    CancelJob,
    DiscardJob,
    NoteJob,
    PauseJob,
    RequeueJob,
    RescheduleJob,
    ResumeJob,
    RetryJob,
)
from jobledger.admin.verbs.keys import CreateKey, ListKeys, RevokeKey, RotateKey, ShowKey
from jobledger.admin.verbs.kit import Verb
from jobledger.admin.verbs.limits import RemoveLimit, SetLimit
from jobledger.admin.verbs.owners import EraseOwner, HoldOwnersData, ListOwners, ShowOwner, UnholdOwnersData
from jobledger.admin.verbs.queues import PauseQueue, ResumeQueue
from jobledger.admin.verbs.retention import SetRetention, ShowRetention
from jobledger.admin.verbs.routes import EmitToRoute, RemoveRoute, RetryDelivery, ShowRoute, TestRoute
from jobledger.admin.verbs.schedules import (
    BackfillSchedule,
    DeclareSchedule,
    ListNextTicks,
    PauseSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    TriggerSchedule,
)
from jobledger.admin.verbs.upgrades import FinishUpgrade, ShowUpgrade
from jobledger.admin.verbs.watches import ListWatches, RemoveWatch, SetWatch, ShowWatch
from jobledger.admin.verbs.webhooks import (
    GivenTarget,
    ListWebhooks,
    PauseWebhook,
    RemoveWebhook,
    ResumeWebhook,
    RotateWebhook,
    SetWebhook,
    ShowWebhook,
    TestWebhook,
)
from jobledger.ledger import Graph, JobRef, Ledger, task
from jobledger.ledger.access.keys import change_key
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.graphs.named import NamedNode
from jobledger.ledger.masters import MastersHere
from jobledger.ledger.model import key as keys
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.owner_key import WrapKey

_RECEIVER: Final = "https://shop.example/in"
_LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)
#: Of these an example needs a job of its name that is a dead letter; of the others on jobs, one that is scheduled.
OF_DEAD_LETTERS: Final = (RequeueJob, DiscardJob)
Wish = Callable[[str], Verb[Any]]
#: What is done to a ledger that needs something called `name`.
Step = Callable[[Ledger, str], Awaitable[object]]


def wished(wish: Wish) -> Step:
    """Return the step that does what is wished."""
    return lambda ledger, name: ledger.do(wish(name))


def webhook(ledger: Ledger, name: str) -> Awaitable[object]:
    """Have a webhook that makes jobs."""
    terms = WebhookDefinition(
        target=WebhookTarget(task="bill", queue="billing"), events=("completed",), task="pack"
    )
    return put_webhook(ledger, name, terms, by="ann")


def route(ledger: Ledger, name: str) -> Awaitable[object]:
    """Have a route that makes a job of what programs emit to it."""
    rule = {"name": "all", "task": "send", "queue": "mail", "input": {"to": {"at": "/to"}}}
    return set_route(ledger, name, definition_of({"scheme": "internal", "rules": [rule]}), by="ann")


async def key(ledger: Ledger, name: str) -> None:
    """Have a key whose id is the name, as no verb makes one."""
    with contextlib.suppress(RefusedError):  # it is there
        await change_key(
            ledger,
            name,
            keys.CreateKey(name="ci", sha256="0" * 64, role="viewer", queues=("mail",)),
            by="ann",
        )


@task(queue="mail")
async def greet(name: str, text: str = "") -> str:
    return name


async def announced(ledger: Ledger, name: str) -> None:
    """Have a worker's word of what the task `greet` takes."""
    del name
    entry = entry_of(greet, worker="web-1-0a", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)


async def graph(ledger: Ledger, name: str) -> None:
    """Store a graph of two nodes."""
    letters = Graph(name)
    first = letters.add(greet.options(name="first"), Graph.input("/customer/name"))
    letters.after(first).add(greet.options(name="second"), "ops")
    await ledger.graphs.put(letters, by="ann")


async def owner(ledger: Ledger, name: str) -> None:
    """Have an owner who has a key."""
    keys = ledger.keys
    assert isinstance(keys, OwnerKeys)
    keys.masters = MastersHere({"m1": WrapKey(b"k" * 32)})
    await keys.key_for(f"person:{name}")


def hourly(ledger: Ledger, name: str) -> Awaitable[object]:
    """Declare a schedule that ticks each hour."""
    like = Enqueue(ref=JobRef(queue="q", job_id="x"), task="report")
    return ledger.schedules.declare(name, like, every_s=3600)


def _day(hour: int) -> datetime:
    return datetime(2026, 1, 2, hour, tzinfo=UTC)


#: A wish about something that is called `name`.
EXAMPLES: Final[Mapping[type[Verb[Any]], Wish]] = {
    CancelJob: lambda name: CancelJob(id=name, queue="mail", reason="no use"),
    RetryJob: lambda name: RetryJob(id=name, queue="mail"),
    RescheduleJob: lambda name: RescheduleJob(id=name, queue="mail", run_at=_LATER),
    PauseJob: lambda name: PauseJob(id=name, queue="mail", reason="a deploy"),
    ResumeJob: lambda name: ResumeJob(id=name, queue="mail"),
    RequeueJob: lambda name: RequeueJob(id=name, queue="mail", attempts=2, edit={"to": "bea"}),
    DiscardJob: lambda name: DiscardJob(id=name, queue="mail", reason="no use"),
    NoteJob: lambda name: NoteJob(id=name, queue="mail", text="seen"),
    PauseQueue: lambda name: PauseQueue(queue=name, reason="a deploy"),
    ResumeQueue: lambda name: ResumeQueue(queue=name),
    SetLimit: lambda name: SetLimit(limit=name, slots=3, rate=None, queues=("mail", "web")),
    RemoveLimit: lambda name: RemoveLimit(limit=name, reason="no use"),
    SetWatch: lambda name: SetWatch(name=name, figure="error_rate", above=0.5, for_s=60.0, window_s=600),
    RemoveWatch: lambda name: RemoveWatch(name=name, reason="no use"),
    ListWatches: lambda _: ListWatches(),
    ShowWatch: lambda name: ShowWatch(name=name),
    SetRetention: lambda _: SetRetention(keep_s=86400.0, max_age_s=None, to="/srv/ledger-archive"),
    ShowRetention: lambda _: ShowRetention(),
    ListOwners: lambda _: ListOwners(),
    ShowOwner: lambda name: ShowOwner(owner=f"person:{name}"),
    HoldOwnersData: lambda name: HoldOwnersData(owner=f"person:{name}", until=_LATER, reason="a lawsuit"),
    UnholdOwnersData: lambda name: UnholdOwnersData(owner=f"person:{name}"),
    EraseOwner: lambda name: EraseOwner(owner=f"person:{name}", request="4711", reason="asked by letter"),
    ShowUpgrade: lambda _: ShowUpgrade(),
    FinishUpgrade: lambda _: FinishUpgrade(reason="all run it"),
    ShowRoute: lambda name: ShowRoute(route=name),
    RemoveRoute: lambda name: RemoveRoute(route=name, reason="no use"),
    RetryDelivery: lambda name: RetryDelivery(route=name, delivery="d1"),
    TestRoute: lambda name: TestRoute(route=name, body=b'{"to": "ann"}', headers={"x-kind": "a letter"}),
    EmitToRoute: lambda name: EmitToRoute(route=name, data={"to": "ann"}, id="d1"),
    SetWebhook: lambda name: SetWebhook(
        name=name,
        target=GivenTarget(url=_RECEIVER),
        events=("completed",),
        secrets=("env:JOBLEDGER_SECRET_OLD",),
    ),
    RotateWebhook: lambda name: RotateWebhook(name=name, secret="env:JOBLEDGER_SECRET_NEW", reason="yearly"),
    TestWebhook: lambda name: TestWebhook(name=name),
    ListWebhooks: lambda _: ListWebhooks(),
    ShowWebhook: lambda name: ShowWebhook(name=name),
    RemoveWebhook: lambda name: RemoveWebhook(name=name, reason="no use"),
    PauseWebhook: lambda name: PauseWebhook(name=name, reason="the receiver moves"),
    ResumeWebhook: lambda name: ResumeWebhook(name=name),
    CreateKey: lambda name: CreateKey(
        name=name, role="viewer", permissions=("queue", "run"), queues=("mail",), expires_at=_LATER
    ),
    ListKeys: lambda _: ListKeys(ended=True),
    ShowKey: lambda name: ShowKey(id=name),
    RotateKey: lambda name: RotateKey(id=name, grace_s=60.0, reason="yearly"),
    RevokeKey: lambda name: RevokeKey(id=name, reason="gone"),
    PutGraph: lambda name: PutGraph(
        name=name, graph=GivenGraph(nodes=(NamedNode(name="first", task="greet", input={"name": "ann"}),))
    ),
    ListGraphs: lambda _: ListGraphs(),
    ShowGraph: lambda name: ShowGraph(name=name, version=1),
    RemoveGraph: lambda name: RemoveGraph(name=name, reason="no use"),
    DeclareSchedule: lambda name: DeclareSchedule(
        name=name, task="report", input={"day": 1}, every_s=3600, metadata={"team": "mail"}
    ),
    PauseSchedule: lambda name: PauseSchedule(name=name, reason="a holiday"),
    ResumeSchedule: lambda name: ResumeSchedule(name=name),
    ResetSchedule: lambda name: ResetSchedule(name=name),
    RemoveSchedule: lambda name: RemoveSchedule(name=name, reason="no use"),
    TriggerSchedule: lambda name: TriggerSchedule(name=name, reason="now"),
    BackfillSchedule: lambda name: BackfillSchedule(name=name, begin=_day(0), end=_day(3)),
    ListNextTicks: lambda name: ListNextTicks(name=name, count=3),
}
#: What comes before, for those that need something to be there.
BEFORE: Final[Mapping[type[Verb[Any]], tuple[Step, ...]]] = {
    ResumeJob: (wished(EXAMPLES[PauseJob]),),
    EraseOwner: (owner,),
    ShowOwner: (owner,),
    ListOwners: (wished(lambda _: EXAMPLES[HoldOwnersData]("one")),),
    UnholdOwnersData: (wished(EXAMPLES[HoldOwnersData]),),
    ResumeQueue: (wished(EXAMPLES[PauseQueue]),),
    RemoveLimit: (wished(EXAMPLES[SetLimit]),),
    RemoveWatch: (wished(EXAMPLES[SetWatch]),),
    ListWatches: (wished(lambda _: EXAMPLES[SetWatch]("one")),),
    ShowWatch: (wished(EXAMPLES[SetWatch]),),
    ShowRoute: (route,),
    RemoveRoute: (route,),
    RetryDelivery: (route, lambda ledger, name: ledger.emit(name, {"to": "ann"}, id="d1", by="ann")),
    TestRoute: (route,),
    EmitToRoute: (route,),
    RotateWebhook: (wished(EXAMPLES[SetWebhook]),),
    TestWebhook: (wished(EXAMPLES[SetWebhook]),),
    ListWebhooks: (lambda ledger, _: webhook(ledger, "one"),),
    ShowWebhook: (webhook,),
    RemoveWebhook: (webhook,),
    PauseWebhook: (webhook,),
    ResumeWebhook: (webhook, wished(EXAMPLES[PauseWebhook])),
    ListKeys: (lambda ledger, _: key(ledger, "one"),),
    ShowKey: (key,),
    RotateKey: (key,),
    RevokeKey: (key,),
    PutGraph: (announced,),
    ListGraphs: (lambda ledger, _: graph(ledger, "one"),),
    ShowGraph: (graph,),
    RemoveGraph: (graph,),
    PauseSchedule: (hourly,),
    ResumeSchedule: (hourly, wished(EXAMPLES[PauseSchedule])),
    ResetSchedule: (hourly,),
    RemoveSchedule: (hourly,),
    TriggerSchedule: (hourly,),
    BackfillSchedule: (hourly,),
    ListNextTicks: (hourly,),
}
