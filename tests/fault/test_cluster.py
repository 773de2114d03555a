"""Three servers under everything at once, while any one of them is killed, frozen, cut off, restarted or wiped.

All rows load one ledger: jobs of each kind by two Python clients and two gateways, a schedule, limits, runs with children,
a webhook. A row tells what callers saw of its fault, and a count by nats-py alone follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from tests.integration.conftest import Process
from tests.support import by_hand, traces
from tests.support.by_hand import ByHand
from tests.support.cluster import SIZE
from tests.support.figures import Recorder
from tests.support.fleet import ROOT
from tests.support.gateways import as_account
from tests.support.receivers import Receiver, receiving
from tests.support.soundness import RowEnd
from tests.support.steady import Answers, Kind, Load, longest
from tests.support.wired import WiredCluster, wired_cluster

from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.ledger import Task, TaskRegistry, connect
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(480)]

APP: Final = ROOT / "tests" / "fault" / "apps" / "three.py"
TENANTS: Final = 3
SLOTS: Final = 2  #: of each tenant, as the app says
TICK_S: Final = 2.0  #: of its schedule
DOWN_S: Final = 8.0  #: how long a killed server is away
CUT_S: Final = 25.0
SETTLE_S: Final = 6.0
HEALTHY_S: Final = 90.0
DRAINED_S: Final = 120.0
#: How the jobs of each kind end that were not cancelled.
ENDS: Final = {
    "plain": "completed",
    "again": "completed",
    "never": "dead_lettered",
    "limited": "completed",
    "order": "completed",
    "http": "completed",
    "beat": "completed",
}


class Lab(NamedTuple):
    """The servers and all that works with them."""

    servers: WiredCluster
    load: Load
    counted: ByHand
    trace: Path
    untold: int  #: jobs of the schedule that no webhook is to tell of


@pytest.fixture(scope="module")
async def lab(
    anyio_backend: object,
    nats_server_binary: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Lab]:
    folder = tmp_path_factory.mktemp("three")
    end = RowEnd(request.node, folder)
    async with wired_cluster(nats_server_binary, folder) as servers, receiving() as receiver:
        end.begins(servers.url)
        async with (
            connect(servers.url, replicas=SIZE, ledger_bytes_max=1 << 30) as one,
            connect(servers.url) as other,
            programs(folder, servers.url, receiver) as gateways,
        ):
            await put_webhook(one, "told", told(receiver), by="ann")
            counted = ByHand(servers.url)
            await asyncio.to_thread(by_hand.read_on, counted)
            untold = counted.ends()["beat", "completed"]  # before there was a webhook
            load = Load((one, other), kinds())
            made = Lab(servers, load, counted, folder / "trace", untold)
            async with load.running(gateways):
                await asyncio.sleep(SETTLE_S)
                yield made
            await drained(made)
            await one.schedules.pause("beat", reason="the test is over")
            await drained(made)
            await all_told(made, receiver)
        await end.holds()
    check_the_end(made)


@contextlib.asynccontextmanager
async def programs(folder: Path, url: str, receiver: Receiver) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Run two workers, two gateways and a projector as an operator starts them; give clients of the gateways."""
    variables = {
        "JOBLEDGER_URL": url,
        "JOBLEDGER_WAIT_FOR_SERVER_S": "30",
        "CHAOS_TRACE": str(folder / "trace"),
        "HOOK": "a secret of the test's own",
    }
    started: list[Process] = []

    def start(*words: str) -> Process:
        started.append(Process(folder, *words, variables=variables))
        return started[-1]

    try:
        workers = [start("worker", "--app", str(APP), "--concurrency", "40", "--json") for _ in range(2)]
        for each in workers:
            await asyncio.to_thread(each.line)
        words = ("--port", "0", "--json", "--no-access-log", "--allow-target", "127.0.0.1/32")
        fronts = [
            start("gateway", *words, "--projection", str(folder / f"gateway-{number}.db"))
            for number in range(2)
        ]
        ready = [await asyncio.to_thread(each.line) for each in fronts]
        start("projection", "run", "--projection", str(folder / "projection.db"), "--json")
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=each["gateway"], headers=as_account(each), timeout=45.0)
                )
                for each in ready
            ]
        codes = [await asyncio.to_thread(each.end, signal.SIGTERM) for each in started]
        assert set(codes) == {0}, codes
        unread = [
            line for each in started for line in each.errors.splitlines() if line.startswith("Traceback")
        ]
        assert unread == [], "a program showed a traceback"
    finally:
        for number, each in enumerate(started):
            await asyncio.to_thread(each.close)
            (folder / f"said-{number}.log").write_text(each.errors, encoding="utf-8")


def told(receiver: Receiver) -> WebhookDefinition:
    """Tell of each job of the schedule that completes."""
    return WebhookDefinition(
        target=WebhookTarget(url=receiver.url),
        events=("completed",),
        task="tick",
        secrets=("env:HOOK",),
        allow_http=True,
        allow_private=True,
    )


def kinds() -> list[Kind]:
    tasks: dict[str, Task[..., Any]] = {each.name: each for each in TaskRegistry.load([str(APP)])}

    def plain(name: str) -> Kind:
        return lambda number: (tasks[name], (number,))

    def limited(number: int) -> tuple[Task[..., Any], tuple[Any, ...]]:
        return tasks["limited"], (f"t{number % TENANTS}", number)

    return [plain("plain"), plain("again"), limited, plain("plain"), plain("order"), limited, plain("never")]


# What is done to the servers. Each returns whose new leader callers waited for, "" for nobody's.


class Row(NamedTuple):
    name: str
    what: str
    do: Callable[[WiredCluster], Awaitable[str]]


def kill(what: str) -> Callable[[WiredCluster], Awaitable[str]]:
    async def do(servers: WiredCluster) -> str:
        number = await servers.leader(what)
        await servers.kill(number)
        await asyncio.sleep(DOWN_S)
        servers.start(number)
        return what

    return do


def freeze(seconds: float, *, of_clients: bool = False) -> Callable[[WiredCluster], Awaitable[str]]:
    async def do(servers: WiredCluster) -> str:
        number = servers.busiest() if of_clients else await servers.leader("LEDGER")
        with servers.frozen(number):
            await asyncio.sleep(seconds)
        return "LEDGER"

    return do


def cut(*, clients: bool) -> Callable[[WiredCluster], Awaitable[str]]:
    async def do(servers: WiredCluster) -> str:
        with servers.cut_off(await servers.leader("LEDGER"), clients=clients):
            await asyncio.sleep(CUT_S)
        return "LEDGER"

    return do


def restart(how: signal.Signals) -> Callable[[WiredCluster], Awaitable[str]]:
    async def do(servers: WiredCluster) -> str:
        for number in range(SIZE):
            await servers.end(number, how)
            servers.start(number)
            await servers.healthy(HEALTHY_S)
            await asyncio.sleep(SETTLE_S)
        return "LEDGER"

    return do


async def wipe(servers: WiredCluster) -> str:
    number = await servers.leader("LEDGER")
    await servers.kill(number)
    servers.wipe(number)
    await asyncio.sleep(DOWN_S)
    servers.start(number)
    return "LEDGER"


async def kill_all(servers: WiredCluster) -> str:
    for number in range(SIZE):
        await servers.kill(number)
    for number in range(SIZE):
        servers.start(number)
    return "LEDGER"


ROWS: Final = (
    Row("C1", "SIGKILL of the leader of LEDGER", kill("LEDGER")),
    Row("C2", "SIGKILL of the leader of a work consumer", kill("work_plain_normal")),
    Row("C3", "SIGKILL of the leader of WORKERS", kill("KV_WORKERS")),
    Row("C4", "SIGKILL of the leader of TIMERS", kill("TIMERS")),
    Row("C5", "SIGKILL of the meta leader", kill("meta")),
    Row("C6", "SIGSTOP of the leader of LEDGER for 10 s", freeze(10.0)),
    Row("C7", "SIGSTOP of the leader of LEDGER for 40 s", freeze(40.0)),
    Row("C8", "SIGSTOP of the server of most clients for 10 s", freeze(10.0, of_clients=True)),
    Row("C9", "SIGSTOP of the server of most clients for 40 s", freeze(40.0, of_clients=True)),
    Row("C10", "routes of the leader of LEDGER cut for 25 s", cut(clients=False)),
    Row("C11", "routes and clients of the leader of LEDGER cut for 25 s", cut(clients=True)),
    Row("C12", "each server restarted by SIGTERM", restart(signal.SIGTERM)),
    Row("C13", "each server restarted by lame duck", restart(signal.SIGUSR2)),
    Row("C14", "the leader of LEDGER killed, its store wiped", wipe),
    Row("C15", "SIGKILL of all three", kill_all),
)


@pytest.mark.parametrize("row", ROWS, ids=[each.name for each in ROWS])
async def test_one_server_of_three_is_lost_and_no_caller_notices(
    lab: Lab, row: Row, record: Recorder, tell: Callable[[str], None]
) -> None:
    began, at, events = time.monotonic(), time.time(), lab.counted.count
    whose = await row.do(lab.servers)
    await lab.servers.healthy(HEALTHY_S)
    for server in await lab.servers.whole(HEALTHY_S):
        tell(f"{row.name}: {server} did not catch up by itself, and was restarted")
    await asyncio.sleep(SETTLE_S)
    answers, acknowledged = lab.load.between(began, time.monotonic()), set(lab.load.acknowledged)
    await asyncio.to_thread(by_hand.read_on, lab.counted)
    # Whoever led one stream may have led the ledger as well, and its election is another one.
    elections = {name: lab.servers.election_s(name, at) for name in (whose, "LEDGER")}
    line = summary(answers, lab.trace, elections)
    tell(f"{row.name} {row.what}: {line}")
    for what, count in answers.kinds().most_common(5):
        tell(f"    {count} x {what}")
    assert lab.counted.wrong == []
    assert lab.counted.lost(acknowledged) == []
    assert answers.older == 0
    assert answers.errors("enqueue", "read", "cancel") == Counter()
    refusals = answers.errors("post", "get")
    assert set(refusals) <= {"503"}, refusals  # with Retry-After: how many is told
    record(
        row.name,
        f"three servers: {row.what}",
        faults=line,
        jobs=len({each.job for each in answers.said}),
        events=lab.counted.count - events,
        now=time.monotonic(),
    )


def summary(answers: Answers, trace: Path, elections: Mapping[str, float | None]) -> str:
    """Return what callers saw, in one line."""
    by_worker: dict[int, list[float]] = defaultdict(list)
    for each in traces.read(trace)[0]:
        by_worker[each.pid].append(each.began)
    starts_s = longest(sorted(chain.from_iterable(by_worker.values())), answers)
    worker_s = max(longest(moments, answers) for moments in by_worker.values())
    errors = answers.errors("enqueue", "read", "cancel").total()
    refusals = answers.errors("post", "get").total()
    held = [f"of {name} {took_s:.1f} s" for name, took_s in elections.items() if took_s is not None]
    election = f"election {', '.join(held)}" if held else "no election"
    return (
        f"{errors} errors, {refusals} refusals over HTTP, {answers.older} older of {len(answers.said)} answers; {election}; "
        f"longest pause of enqueues {answers.pause_s('enqueue'):.1f} s, of HTTP {answers.pause_s('post'):.1f} s, "
        f"of starts {starts_s:.1f} s, on one worker {worker_s:.1f} s; slowest read {answers.slowest_s('read'):.1f} s"
    )


async def drained(lab: Lab) -> None:
    """Wait until every job has ended, but for those of the schedule that are made meanwhile."""
    async with asyncio.timeout(DRAINED_S):
        while True:
            await asyncio.to_thread(by_hand.read_on, lab.counted)
            if not [each for each in lab.counted.open() if not each.startswith("beat")]:
                return
            await asyncio.sleep(1.0)


def check_the_end(lab: Lab) -> None:
    """What holds for all rows together."""
    counted = lab.counted
    assert counted.wrong == []
    assert counted.lost(lab.load.acknowledged) == []
    assert counted.open() == []
    wrong = {
        (kind, end): count
        for (kind, end), count in counted.ends().items()
        if kind in ENDS and end not in {ENDS[kind], "cancelled"}
    }
    assert wrong == {}
    assert counted.missed_ticks("beat", TICK_S) == []
    judged = traces.judge(lab.trace)
    assert judged.overlaps == []
    assert judged.repeated == []
    assert most_at_once(lab.trace) <= SLOTS


async def all_told(lab: Lab, receiver: Receiver) -> None:
    """Wait until each job of the schedule that completed was told of; a message may come twice."""
    wanted = lab.counted.ends()["beat", "completed"] - lab.untold
    async with asyncio.timeout(DRAINED_S):
        while len(set(receiver.ids)) < wanted:
            await asyncio.sleep(0.5)


def most_at_once(trace: Path) -> int:
    """Return how many jobs of one tenant ran at the same moment, at the most."""
    most, now = 0, Counter[str]()
    runs = [
        each for each in traces.read(trace)[0] if each.job.startswith("limited-") and each.ended is not None
    ]
    changes = [(each.began, 1, each) for each in runs] + [(each.ended or 0.0, -1, each) for each in runs]
    for _, change, each in sorted(changes, key=lambda change: change[:2]):
        tenant = f"t{int(each.job.rpartition('-')[2]) % TENANTS}"
        now[tenant] += change
        most = max(most, now[tenant])
    return most


@pytest.mark.unsound_ledger("an event is planted that is none")
async def test_the_checks_find_what_is_planted(server: EmbeddedServer) -> None:
    """An acknowledged job that is not there, a second end, and a client that reads something else than was written."""
    async with connect(server.url) as ledger, connect(server.url, environment="elsewhere") as wrong:
        load = Load((ledger, wrong), [kinds()[0]])
        async with load.running():
            await asyncio.sleep(1.0)
        job = await ledger.enqueue(kinds()[0](1)[0].options(id="ended"), 1)
        await job.cancel()
        await ledger.inbox.ask("ledger.job.plain.ended.completed", {}, timeout_s=5.0)
        counted = ByHand(server.url)
        await asyncio.to_thread(by_hand.read_on, counted)
    assert counted.lost({"ended", "nobody"}) == ["nobody"]
    assert sorted(counted.wrong) == [
        "ended completed and never started",
        "ended has completed after it ended",
    ]
    answers = load.between(0.0, time.monotonic())
    assert answers.older > 0
    assert counted.lost(load.acknowledged) != []
