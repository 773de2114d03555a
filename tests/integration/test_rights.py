"""What a server refuses is told at once, with verb and subject; what `jobledger permissions` prints is enough for each role."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from tests.support.limits import LIMIT_S
from tests.support.secured import Secured, secured
from tests.support.working import until, working

from jobledger.admin.permissions import allowed, as_configuration
from jobledger.cli.main import run
from jobledger.ledger import JobState, Ledger, Limit, TaskRegistry, connect, task
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.access import inbox_of
from jobledger.workers import Worker

pytestmark = pytest.mark.anyio
#: Everything else waits at least five seconds for an answer.
AT_ONCE_S = 4.0


@task(queue="work")
async def add(a: int, b: int) -> int:
    return a + b


@task(queue="work")
async def keep(text: str) -> str:
    return text


async def read(ledger: Ledger) -> None:
    async for _ in ledger.events(follow=False):
        pass


async def work(ledger: Ledger) -> None:
    await Worker(ledger, TaskRegistry([add, keep])).run()


async def look(ledger: Ledger) -> None:
    await (await ledger.job("one")).state()


async def fetch(ledger: Ledger) -> None:
    queued = (await (await ledger.job("large")).history())[0].event
    assert isinstance(queued, Queued)
    await ledger.inputs.get(queued.input, queued.input_ref, key="")


async def subscribe(ledger: Ledger) -> None:
    async with ledger.subscription("bill"):
        pass


async def lock(ledger: Ledger) -> None:
    async with ledger.lock("scope", "one", wait_s=1):
        pass


async def batch(ledger: Ledger) -> None:
    """Append two entries as one; only the last asks for an answer, and the first is refused."""
    names = (f"ledger.lock.scope.{each}.acquired" for each in "ab")
    await ledger.log.append([Entry(name, b"{}", name.rpartition(".")[0] + ".*", 0) for name in names])


#: Users who cannot read the ledger through a consumer, and which right they lack.
WITHOUT_CONSUMER = {
    "direct": "$JS.API.CONSUMER.CREATE.LEDGER",
    "stopped": "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
}
Act = Callable[[Ledger], Awaitable[Any]]
DENIED: dict[str, tuple[str, Act, str]] = {
    "append": ("ledger.job.>", lambda ledger: ledger.enqueue(add, 1, 2), "publish to ledger.job.work."),
    "lease": ("$KV.WORKERS.>", work, "publish to $KV.WORKERS."),
    "batch": ("ledger.lock.*.a.>", batch, "publish to ledger.lock.scope.a."),
    "chain": ("$JS.API.DIRECT.GET.LEDGER", look, "publish to $JS.API.DIRECT.GET.LEDGER"),
    "blind": (
        "$JS.API.CONSUMER.CREATE.LEDGER, $JS.API.DIRECT.GET.LEDGER",
        read,
        "publish to $JS.API.DIRECT.GET.LEDGER",
    ),
    "work": (
        "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
        work,
        "publish to $JS.API.CONSUMER.MSG.NEXT.LEDGER.work_",
    ),
    "input": (
        "$O.PAYLOADS.>",
        lambda ledger: ledger.enqueue(keep, "x" * 90_000),
        "publish to $O.PAYLOADS.C.",
    ),
    "bucket": ("$JS.API.STREAM.NAMES", fetch, "publish to $JS.API.STREAM.NAMES"),
    "payload": (
        "$JS.API.STREAM.MSG.GET.OBJ_PAYLOADS",
        fetch,
        "publish to $JS.API.STREAM.MSG.GET.OBJ_PAYLOADS",
    ),
    "subscription": (
        "$JS.API.CONSUMER.CREATE.LEDGER.>",
        subscribe,
        "publish to $JS.API.CONSUMER.CREATE.LEDGER.events_bill",
    ),
    "lock": ("ledger.lock.>", lock, "publish to ledger.lock.scope.one."),
}


def user(name: str, publish: str = "", subscribe: str = "") -> str:
    denied = {"publish": publish, "subscribe": subscribe}
    rights = ", ".join(
        f"{verb}: {{ deny: [{', '.join(map(json.dumps, subjects.split(', ')))}] }}"
        for verb, subjects in denied.items()
        if subjects
    )
    return f"{{ user: {name}, password: p, permissions: {{ {rights} }} }}"


def role(name: str) -> str:
    """Return a user who may do what `jobledger permissions` prints of a role, and nothing else."""
    may = as_configuration(allowed(name, Names(), inbox_prefix=inbox_of(f"may_{name}")), about=name)
    return f"{{ user: may_{name}, password: p, {may} }}"


@pytest.fixture(scope="module")
def server(nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One user for each right that is missing, one for each role, and one who may do everything."""
    users = [user(name, subject) for name, (subject, _, _) in DENIED.items()]
    users += [user(name, subject) for name, subject in WITHOUT_CONSUMER.items()]
    users += [user("info", "$JS.API.STREAM.INFO.>"), user("inbox", subscribe="_INBOX_inbox.>")]
    users += [
        user("claim", "ledger.job.*.*.started"),
        user("define", "ledger.limit.>"),
        *map(role, ("producer", "worker", "reactors", "reader")),
    ]
    text = f"authorization {{ users: [ {{ user: all, password: p }}, {', '.join(users)} ] }}\n"
    with secured(nats_server_binary, tmp_path_factory.mktemp("rights"), text) as running:
        yield running


@pytest.fixture
async def ready(server: Secured) -> str:
    async with connect(server.url(), user="all", password="p", ledger_bytes_max=64 << 20) as ledger:
        await ledger.enqueue(add.options(id="one"), 1, 2)
        await ledger.enqueue(keep.options(id="large"), "z" * 90_000)
    return server.url()


@pytest.mark.parametrize("name", DENIED)
async def test_a_refused_right_is_told_at_once(ready: str, name: str) -> None:
    _, act, words = DENIED[name]
    async with connect(ready, user=name, password="p") as ledger:
        begun = time.monotonic()
        with pytest.raises(PermissionRefusedError) as caught, anyio.fail_after(LIMIT_S):
            await act(ledger)
        assert time.monotonic() - begun < AT_ONCE_S
        assert f"the server does not allow this user to {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("info", "publish to $JS.API.STREAM.INFO.LEDGER"), ("inbox", "subscribe to _INBOX_inbox.")],
)
async def test_what_connecting_needs_is_told_at_once(
    ready: str, name: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    with pytest.raises(PermissionRefusedError, match=re.escape(words)):
        async with connect(ready, user=name, password="p"):
            pass
    monkeypatch.setenv("JOBLEDGER_PASSWORD", "p")
    at = ("--url", ready, "--user", name)
    assert await anyio.to_thread.run_sync(run, ["workers", "list", *at]) == 4
    assert words in capsys.readouterr().err
    assert await anyio.to_thread.run_sync(run, ["doctor", *at]) in {1, 4}
    assert words in capsys.readouterr().out
    assert time.monotonic() - begun < 3 * AT_ONCE_S


@pytest.mark.parametrize("name", WITHOUT_CONSUMER)
async def test_who_may_use_no_consumer_reads_the_same_without_one(
    ready: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="jobledger.feed")
    async with (
        connect(ready, user="all", password="p") as all_of_it,
        connect(ready, user=name, password="p") as ledger,
    ):
        for number in range(1_200):  # more than one answer holds
            await all_of_it.enqueue(add.options(id=f"{name}-{number}"), 1, 2)
        whole = [each async for each in all_of_it.events(follow=False)]
        assert [each async for each in ledger.events(follow=False)] == whole
        choices: tuple[dict[str, Any], ...] = (
            {"types": ("queued",), "queue": "work"},
            {"types": ("queued", "held")},
            {"since": whole[700].stored_at},
            {"from_sequence": whole[900].stream_sequence},
        )
        for chosen in choices:
            expected = [each async for each in all_of_it.events(follow=False, **chosen)]
            assert expected
            assert [each async for each in ledger.events(follow=False, **chosen)] == expected
        begun = asyncio.Event()

        async def follow() -> str:
            async for each in ledger.events(from_sequence=whole[-1].stream_sequence):
                begun.set()
                if each.stream_sequence > whole[-1].stream_sequence:
                    return each.event.job
            return ""

        following = asyncio.create_task(follow())
        await begun.wait()
        await all_of_it.enqueue(add.options(id=f"{name}-new"), 1, 2)
        async with asyncio.timeout(LIMIT_S):
            assert await following == f"{name}-new"
    assert "reading goes on by direct gets, without a consumer" in caplog.text
    assert "ERROR" not in caplog.text


async def test_a_worker_that_may_not_claim_says_so_and_lives_on(
    ready: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(ready, user="claim", password="p") as ledger, working(ledger, add, keep):
        await until(lambda: "publish to ledger.job.work.one.started" in caplog.text)


async def test_code_that_may_not_define_its_limit_says_so_and_the_job_is_held(
    ready: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(ready, user="define", password="p") as ledger:
        begun = time.monotonic()
        job = await ledger.enqueue(add.options(limits=(Limit("api", slots=1),)), 1, 2)
        assert await job.state() is JobState.HELD
        assert time.monotonic() - begun < AT_ONCE_S
    assert "limit api could not be set as the code has it" in caplog.text
    assert "does not allow this user to publish to ledger.limit.api.set" in caplog.text


async def test_the_rights_of_the_page_are_enough_for_a_role(
    ready: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        producer, worker, reactors, auditor = [
            await stack.enter_async_context(connect(ready, user=f"may_{each}", password="p"))
            for each in ("producer", "worker", "reactors", "reader")
        ]
        await stack.enter_async_context(working(worker, add, keep, reactors=False))
        await stack.enter_async_context(working(reactors, queues=(BUILT_IN_QUEUE,), schedules=False))
        small, large = await producer.enqueue(add, 1, 2), await producer.enqueue(keep, "w" * 90_000)
        assert await small.result(timeout_s=LIMIT_S) == 3
        assert len(await large.result(timeout_s=LIMIT_S)) == 90_000
        assert [stored async for stored in auditor.events(follow=False)]
    assert "does not allow" not in caplog.text
