"""`jobledger permissions`: with what it prints roles do their work without one refusal, and nothing of what is others'."""

from __future__ import annotations

import asyncio
import contextlib
import re
import runpy
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from tests.integration.conftest import Process
from tests.support.cluster import cluster
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.outboxes import SQLITE_WAYS, make_table
from tests.support.roles import ask, authorization, printed, user
from tests.support.schedules import declare
from tests.support.secured import Secured, secured
from tests.support.working import until, working

from jobledger.admin.permissions import PARTS, ROLES
from jobledger.cli.main import run as run_command
from jobledger.ledger import (
    Backoff,
    Context,
    Ledger,
    Limit,
    Run,
    Signal,
    TaskRegistry,
    Unique,
    connect,
    task,
    workflow,
)
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import fits
from jobledger.ledger.outbox.addresses import open_database
from jobledger.ledger.outbox.relay import Relay, RelayCounts

pytestmark = pytest.mark.anyio
go = Signal("go", bool)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
EXAMPLE = Path(__file__).parents[2] / "examples" / "delayed_and_retried.py"
#: User of the server -> words of the command that prints its rights.
USERS = {
    "app": ("producer", "--queue", "mail", "--limits"),
    "relay": ("producer", "--queue", "mail", "--locks", "--limits"),
    "mailer": ("worker", "--queue", "mail"),
    "hosts": ("reactors",),
    "billing": ("subscriber", "--subscription", "bills"),
    "tables": ("reader",),
    "web": ("gateway",),
    "ann": ("operator",),
}


@task(queue="mail", max_attempts=2, backoff=Backoff(base_s=0.05, jitter=0.0))
async def send(ctx: Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ValueError("not the first time")
    return number


@task(queue="mail")
async def keep(text: str) -> int:
    return len(text)


ticks: list[int] = []


@task(queue="mail")
async def add() -> None:
    ticks.append(1)


@workflow(queue="mail")
async def letters(run: Run) -> int:
    sent = await run.map(send, [1, 2])
    kept = await run.call(keep, "x" * 90_000)
    await run.wait(go)
    return sum(sent) + kept


class Place(NamedTuple):
    """One server, or several."""

    addresses: str

    def url(self) -> str:
        return self.addresses


@pytest.fixture(scope="module")
def server(nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A user for each role, with the rights that the command prints."""
    folder = tmp_path_factory.mktemp("permissions")
    users = [user(name, printed(*words, "--of", name)) for name, words in USERS.items()]
    with secured(nats_server_binary, folder, authorization(*users)) as running:
        yield running


@contextlib.asynccontextmanager
async def opened(server: Secured | Place, user: str, **settings: Any) -> AsyncGenerator[Ledger, None]:
    async with connect(server.url(), user=user, password="p", **settings) as ledger:
        yield ledger


@pytest.fixture
async def made(server: Secured) -> None:
    """Whoever operates makes the ledger."""
    await make(server)


async def make(server: Secured | Place, who: str = "ann") -> None:
    async with opened(server, who, ledger_bytes_max=64 << 20):
        pass


@pytest.mark.usefixtures("made")
async def test_roles_do_their_work_without_one_refusal(
    server: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    await play(server)
    assert "does not allow" not in caplog.text


async def test_roles_do_the_same_on_three_servers(
    nats_server_binary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = [user(name, printed(*words, "--of", name)) for name, words in USERS.items()]
    async with cluster(
        nats_server_binary, tmp_path, configuration=authorization(*users), login="all:p@"
    ) as servers:
        place = Place(servers.url.replace("all:p@", ""))
        await make(place)
        await play(place)
    assert "does not allow" not in caplog.text


async def play(server: Secured | Place) -> None:
    async with contextlib.AsyncExitStack() as stack:
        app, mailer, hosts, billing, tables, ann = [
            await stack.enter_async_context(opened(server, each))
            for each in ("app", "mailer", "hosts", "billing", "tables", "ann")
        ]
        await stack.enter_async_context(
            working(hosts, registry=TaskRegistry([]), queues=(BUILT_IN_QUEUE,), schedules=False)
        )
        worker = await stack.enter_async_context(working(mailer, send, keep, letters, add, reactors=False))
        await worker.taking.wait()
        delayed = await app.enqueue(send.options(delay_s=0.2), 1)
        limited = await app.enqueue(send.options(limits=(Limit("smtp", slots=1),)), 2)
        large = await app.enqueue(keep, "w" * 90_000)
        run = await app.enqueue(letters)
        await app.signal(run, go, True)
        await declare(ann, "often", queue="mail")
        await until(lambda: bool(ticks))
        await ann.schedules.act("often", Remove())
        assert [await each.result(timeout_s=LIMIT_S) for each in (delayed, limited, large)] == [1, 2, 90_000]
        assert await run.result(timeout_s=LIMIT_S) == 90_003
        assert [stored async for stored in billing.events(follow=False)]
        async with billing.subscription("bills", follow=False) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
        assert [stored async for stored in tables.events(follow=False)]


@pytest.mark.usefixtures("made")
async def test_the_relay_of_an_outbox_works_with_the_rights_of_a_producer(
    server: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"sqlite:{tmp_path / 'app.db'}"
    await make_table(address)
    orders: list[tuple[Any, dict[str, Any]]] = [
        (send.options(id="of-outbox", limits=(Limit("smtp", slots=1),)), {"number": 2}),
        (keep.options(id="of-outbox-2", unique=Unique()), {"text": "w" * 90_000}),
    ]
    async with opened(server, "relay") as ledger, open_database(address) as database:
        relay = Relay(ledger, database)
        for done in (
            RelayCounts(created=2),
            RelayCounts(created=2, existing=2),
        ):  # the second time they are compared
            await SQLITE_WAYS["sqlite3"](address)(orders, True)
            assert await relay.once() == done
    assert "does not allow" not in caplog.text


@pytest.mark.usefixtures("made")
async def test_an_example_runs_on_processes_that_have_these_rights_alone(
    server: Secured, command: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(user: str, *words: str) -> Process:
        variables = {"JOBLEDGER_URL": server.url(), "JOBLEDGER_USER": user, "JOBLEDGER_PASSWORD": "p"}
        return command(*words, "--json", variables=variables)

    begun = (
        begin("mailer", "worker", "--app", str(EXAMPLE), "--queue", "mail", "--no-reactors"),
        begin("hosts", "reactors"),
        begin("web", "gateway", "--port", "0", "--projection", "rows.db"),
    )
    ready = [await asyncio.to_thread(each.line) for each in begun]
    async with opened(server, "app") as app:
        await runpy.run_path(str(EXAMPLE))["run"](app)
    assert "sent to ada at attempt 3" in capsys.readouterr().out
    async with httpx.AsyncClient(base_url=ready[2]["gateway"], headers=as_account(ready[2])) as front:
        made = await front.post(
            "/v1/jobs", json={"task": "remind", "input": {"user": "bob"}}, timeout=LIMIT_S
        )
        assert made.status_code in {200, 202}, made.text
        job = made.json()["id"]
        await becomes_over_http(front, f"/v1/jobs/mail/{job}")
        cancelled = await front.post(
            "/v1/jobs", json={"task": "remind", "input": {"user": "eve"}, "delay_s": 60}
        )
        acted = await front.post(f"/v1/jobs/mail/{cancelled.json()['id']}/cancel", json={"reason": "a test"})
        assert acted.status_code == 200, acted.text
    for each in begun:
        assert await asyncio.to_thread(each.end, signal.SIGTERM) == 0
        assert "does not allow" not in each.errors


async def test_the_set_up_of_the_page_of_security_works(
    nats_server_binary: str,
    tmp_path: Path,
    command: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rights and its line for each user make the server's configuration, and its processes start."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (?:`jobledger ([^`]+)`)?", page, flags=re.MULTILINE)
    assert [role for role, _, _ in rows] == ["operator", "reactors", "worker", "gateway", "producer"]
    for role, words, _ in rows:
        (tmp_path / f"{role}.conf").write_text(printed(*words.split()), encoding="utf-8")
        monkeypatch.setenv(role.upper(), f"of-{role}")
    found = re.search(r"^```text\n(.*\n)(.*\n)(.*\n)```", page, flags=re.MULTILINE)
    assert found is not None
    begin, line, end = found.groups()
    users = (line.replace("worker", role).replace("WORKER", role.upper()) for role, _, _ in rows)
    with secured(nats_server_binary, tmp_path, begin + "".join(users) + end) as running:
        begun: list[Process] = []
        for role, _, program in rows[:-1]:
            words = program.replace("--app mail", f"--app {EXAMPLE}")
            place = {"JOBLEDGER_URL": running.url(), "JOBLEDGER_PASSWORD": f"of-{role}"}
            place["JOBLEDGER_LEDGER_BYTES_MAX"] = "67108864"
            more = ("--port", "0") if role == "gateway" else ()
            begun.append(command(*words.split(), *more, "--json", variables=place))
            assert await asyncio.to_thread(begun[-1].line)
        async with connect(running.url(), user="producer", password="of-producer") as app:
            await runpy.run_path(str(EXAMPLE))["run"](app)
        for each in begun[1:]:
            assert await asyncio.to_thread(each.end, signal.SIGTERM) == 0
            assert "does not allow" not in each.errors


async def test_an_archiver_says_again_what_is_in_force(
    nats_server_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each aggregate that an archive run restates, and of keys that jobs hold."""
    graph = tmp_path / "graph.json"
    graph.write_text('{"nodes": [{"name": "one", "task": "keep", "input": {"text": "x"}}]}', encoding="utf-8")
    made: tuple[tuple[str, ...], ...] = (
        ("limits", "set", "smtp", "--slots", "1"),
        ("routes", "set", "orders", "--scheme", "internal"),
        (
            "webhooks",
            "set",
            "told",
            "--to",
            "https://example.org/",
            "--secret",
            "env:X",
            "--event",
            "completed",
        ),
        ("watches", "set", "deep", "--figure", "depth", "--above", "100"),
        ("retention", "set", "--keep", "1d"),
        ("owners", "hold", "person:17"),
        ("graphs", "put", "nightly", "--file", str(graph)),
        ("keys", "create", "ci", "--role", "viewer"),
    )
    rights = authorization(user("archiver", printed("archiver")))
    monkeypatch.setenv("JOBLEDGER_LEDGER_BYTES_MAX", "67108864")
    with secured(nats_server_binary, tmp_path / "server", rights) as server:
        monkeypatch.setenv("JOBLEDGER_URL", server.url(host="all:p@127.0.0.1"))
        await make(server, "all")
        async with opened(server, "all") as ledger, working(ledger, keep, reactors=False) as worker:
            await worker.taking.wait()
            await until_known(ledger, keep.name)
        for words in made:
            assert await asyncio.to_thread(run_command, words) == 0, words
        async with opened(server, "all") as ledger:
            await ledger.enqueue(keep.options(delay_s=3600.0, unique=Unique()), "x")
            before = (await ledger.log.head()).last_sequence
        monkeypatch.setenv("JOBLEDGER_URL", server.url(host="archiver:p@127.0.0.1"))
        words = ("audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", str(tmp_path / "a"))
        assert await asyncio.to_thread(run_command, words) == 0
        async with opened(server, "all") as ledger:
            said = [
                message.subject.split(".")[1]
                async for batch in ledger.log.read_messages(from_sequence=before + 1)
                for message in batch
            ]
            assert (await ledger.log.head()).first_sequence > 1
    restated = {each.name for each in AGGREGATES.values() if each.restated}
    assert {*restated, "unique", "job", "reactor"} <= {*said}


async def until_known(ledger: Ledger, task_name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await ledger.find_task(task_name) is None:
            await asyncio.sleep(0.01)


async def becomes_over_http(front: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await front.get(path)).json()["status"] != "completed":
            await asyncio.sleep(0.05)


def test_what_is_no_role_and_what_is_not_bound_to_queues_is_told() -> None:
    for words, said in (
        (("worke",), "there is no role 'worke': the roles are producer, worker,"),
        (("reader", "--queue", "mail"), "--queue is for the role producer and worker, not for reader"),
        (("producer", "--enqueues", "mail"), "--enqueues is for the role worker, not for producer"),
        (("worker", "--of", "a.b"), "user 'a.b' is not valid"),
        (("worker", "--of", ""), "user '' is not valid"),
        (("worker", "--queue", "a b"), "queue 'a b' is not valid"),
        (("reader", "--subscription", "bills"), "--subscription is for the role subscriber, not for reader"),
        (("subscriber", "--subscription", "a b"), "subscription 'a b' is not valid"),
        (("reader", "--locks"), "--locks is for the role producer and worker, not for reader"),
    ):
        found = ask(*words)
        assert found.code == 2
        assert said in found.err
        assert not found.out


def test_an_environment_has_names_of_its_own_and_a_queue_of_any_name_is_kept() -> None:
    found = msgspec.json.decode(printed("worker", "--queue", "ledger", "--environment", "staging", "--json"))
    assert "staging_ledger.job.ledger.*.*" in found["publish"]
    assert "$JS.API.CONSUMER.INFO.STAGING_LEDGER.work_ledger_high" in found["publish"]
    assert "$KV.STAGING_LOGS.ledger.*.*" in found["publish"]
    assert "staging_hint.cancel.ledger.*" in found["subscribe"]
    words = [token for subject in (*found["publish"], *found["subscribe"]) for token in subject.split(".")]
    assert not {"LEDGER", "TIMERS", "KV_WORKERS", "OBJ_RESULTS", "hint"} & {*words}


def test_a_worker_may_have_the_reactors_and_queues_to_enqueue_to() -> None:
    alone, more, both = (
        msgspec.json.decode(printed("worker", "--queue", "mail", "--json", *more))["publish"]
        for more in ((), ("--enqueues", "reports"), ("--reactors", "--enqueues", "reports"))
    )
    hosts = msgspec.json.decode(printed("reactors", "--of", "worker", "--json"))["publish"]
    assert [each for each in (*more, *hosts) if not any(fits(each, other) for other in both)] == []
    assert {each for each in {*more} - {*alone} if each.startswith("ledger.job.")} == {
        f"ledger.job.reports.*.{event}"
        for event in ("queued.*", "held", "scheduled", "cancelled", "cancel_requested", "signalled")
    }


def test_every_part_of_the_table_belongs_to_a_role() -> None:
    assert {part for parts in ROLES.values() for part in parts} | {
        "Everybody",
        "In a cluster",
        "Limits",
        "Named subscription",
    } == {*PARTS}


def test_somebody_may_append_what_each_aggregate_has() -> None:
    roots = {
        right.subject.split(".")[1]
        for part in PARTS.values()
        for right in part.rights
        if "ledger." in right.subject[:7]
    }
    assert {AGGREGATES[name].name for name in AGGREGATES} <= roots


def test_the_json_is_the_same_list() -> None:
    found = msgspec.json.decode(printed("producer", "--json"))
    lines = [
        line.strip().strip('"') for line in printed("producer").splitlines() if line.startswith("      ")
    ]
    assert lines == [*found["publish"], *found["subscribe"]]
    assert all(found.values())
