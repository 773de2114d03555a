"""`jobledger permissions`: with what it prints roles do their work without one refusal, and nothing of what is others'."""

from __future__ import annotations

import asyncio
import contextlib
import io
import runpy
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import nats
import pytest
from tests.integration.conftest import Process
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
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
    connect,
    task,
    workflow,
)
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.envelope import PRIORITIES
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.schedules.decisions import Remove
from jobledger.ledger.nats import api

pytestmark = pytest.mark.anyio
go = Signal("go", bool)
EXAMPLE = Path(__file__).parents[2] / "examples" / "delayed_and_retried.py"
#: User of the server -> words of the command that prints its rights.
USERS = {
    "app": ("producer", "--queue", "mail", "--limits"),
    "mailer": ("worker", "--queue", "mail"),
    "hosts": ("reactors",),
    "billing": ("subscriber",),
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


@pytest.fixture(scope="module")
def server(nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A user for each role, with the rights that the command prints."""
    folder = tmp_path_factory.mktemp("permissions")
    users = ["{ user: all, password: p }"]
    for user, words in USERS.items():
        (folder / f"{user}.conf").write_text(printed(*words, "--of", user), encoding="utf-8")
        users.append(f'{{ user: {user}, password: p, include "{user}.conf" }}')
    text = f"authorization {{ users: [ {', '.join(users)} ] }}\n"
    with secured(nats_server_binary, folder, text) as running:
        yield running


class Printed(NamedTuple):
    code: int
    out: str
    err: str


def ask(*words: str) -> Printed:
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = run_command(("permissions", *words))
    return Printed(code, out.getvalue(), err.getvalue())


def printed(*words: str) -> str:
    found = ask(*words)
    assert found.code == 0, found.err
    return found.out


@contextlib.asynccontextmanager
async def opened(server: Secured, user: str, **settings: Any) -> AsyncGenerator[Ledger, None]:
    async with connect(server.url(), user=user, password="p", **settings) as ledger:
        yield ledger


@pytest.fixture
async def made(server: Secured) -> None:
    """Whoever operates makes the ledger."""
    async with opened(server, "ann", ledger_bytes_max=64 << 20):
        pass


@pytest.mark.usefixtures("made")
async def test_roles_do_their_work_without_one_refusal(
    server: Secured, caplog: pytest.LogCaptureFixture
) -> None:
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
        for (
            priority
        ) in PRIORITIES:  # before there is a job: else it looks for where to begin, and is refused that
            await is_there(ann, ann.names.consumer("mail", priority))
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


async def becomes_over_http(front: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await front.get(path)).json()["status"] != "completed":
            await asyncio.sleep(0.05)


async def is_there(ledger: Ledger, consumer: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(api.MissingError):
                await api.consumer_info(ledger.inbox, ledger.names.ledger_stream, consumer)
                return
            await asyncio.sleep(0.01)


#: What a role must not do: its user, verb and subject.
REFUSED = (
    ("app", "publish", "ledger.job.mail.j1.started"),
    ("app", "publish", "ledger.job.bank.j1.queued.normal"),
    ("app", "publish", "ledger.queue.mail.paused"),
    ("app", "publish", "ledger.access.k1.created"),
    ("app", "publish", "$JS.API.STREAM.PURGE.LEDGER"),
    ("app", "publish", "$JS.API.CONSUMER.MSG.NEXT.LEDGER.work_mail_normal"),
    ("app", "publish", "ledger.lock.account.42.acquired"),
    ("app", "publish", "$KV.WORKERS.somebody"),
    ("app", "subscribe", "_INBOX_ann.>"),
    ("app", "subscribe", "ledger.>"),
    ("mailer", "publish", "ledger.job.bank.j1.started"),
    ("mailer", "publish", "ledger.limit.smtp.set"),
    ("mailer", "publish", "ledger.access.k1.created"),
    ("mailer", "publish", "ledger.flow.main.slots"),
    ("mailer", "publish", "timer.at.job.mail.j1.7"),
    ("mailer", "publish", "$JS.API.CONSUMER.MSG.NEXT.LEDGER.work_bank_normal"),
    ("mailer", "publish", "$JS.API.CONSUMER.DELETE.LEDGER.work_bank_normal"),
    ("mailer", "publish", "$JS.API.STREAM.PURGE.LEDGER"),
    ("mailer", "subscribe", "_INBOX_app.>"),
    ("hosts", "publish", "ledger.access.k1.created"),
    ("hosts", "publish", "ledger.limit.smtp.set"),
    ("hosts", "publish", "$JS.API.STREAM.PURGE.LEDGER"),
    ("billing", "publish", "ledger.job.mail.j1.queued.normal"),
    ("billing", "publish", "$KV.WORKERS.somebody"),
    ("tables", "publish", "ledger.job.mail.j1.queued.normal"),
    ("tables", "publish", "$O.PAYLOADS.C.x"),
    ("tables", "subscribe", "_INBOX_ann.>"),
    ("web", "publish", "$JS.API.STREAM.PURGE.LEDGER"),
    ("web", "publish", "$JS.API.STREAM.DELETE.LEDGER"),
    ("ann", "publish", "$JS.API.STREAM.DELETE.LEDGER"),
    ("ann", "subscribe", "_INBOX_app.>"),
)


@pytest.mark.parametrize("user", USERS)
async def test_what_is_anothers_is_refused(server: Secured, user: str) -> None:
    refused: list[str] = []

    async def told(error: Exception) -> None:
        refused.append(str(error).lower())

    client = await nats.connect(server.url(), user=user, password="p", error_cb=told)
    try:
        tried = [(verb, subject) for who, verb, subject in REFUSED if who == user]
        for verb, subject in tried:
            if verb == "publish":
                await client.publish(subject, b"")
            else:
                await client.subscribe(subject)
        await client.flush()
        await until(lambda: len(refused) >= len(tried))
    finally:
        await client.close()
    for verb, subject in tried:
        assert any(subject.lower() in each for each in refused), (verb, subject)


def test_what_is_no_role_and_what_is_not_bound_to_queues_is_told() -> None:
    for words, said in (
        (("worke",), "there is no role 'worke': the roles are producer, worker,"),
        (("reader", "--queue", "mail"), "--queue is for the role producer and worker, not for reader"),
        (("producer", "--enqueues", "mail"), "--enqueues is for the role worker, not for producer"),
        (("worker", "--of", "a.b"), "user 'a.b' is not valid"),
        (("worker", "--of", ""), "user '' is not valid"),
        (("worker", "--queue", "a b"), "queue 'a b' is not valid"),
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
    alone, both = (
        {*msgspec.json.decode(printed("worker", "--queue", "mail", "--json", *more))["publish"]}
        for more in ((), ("--reactors", "--enqueues", "reports"))
    )
    hosts = {*msgspec.json.decode(printed("reactors", "--json"))["publish"]}
    assert alone | hosts < both
    assert {each for each in both - alone - hosts if each.startswith("ledger.job.")} == {
        f"ledger.job.reports.*.{event}"
        for event in ("queued.*", "held", "scheduled", "cancelled", "cancel_requested", "signalled")
    }


def test_every_part_of_the_table_belongs_to_a_role() -> None:
    assert {part for parts in ROLES.values() for part in parts} | {
        "Everybody",
        "In a cluster",
        "Limits",
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
