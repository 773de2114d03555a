"""Diagnoses that the test of the whole list does not make: each with object, since and a command that is accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import msgspec
import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import CommandLine
from tests.support.schedules import declare

from jobledger.admin.diagnoses import KINDS, Diagnosis, diagnose
from jobledger.admin.health import _check_retention
from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.limits import set_limit
from jobledger.admin.verbs.retention import SetRetention
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import Ledger
from jobledger.ledger.model.clock import SystemClock
from jobledger.ledger.model.commands import Claim, Complete, Enqueue, Fail
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import Judge, SetWatch, WatchDefinition
from jobledger.ledger.model.hooks.webhook import Fail as FailDelivery
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.subjects import RECONCILER_CONSUMER_PREFIX, JobRef
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_watch, change_webhook

pytestmark = pytest.mark.anyio
SOON: Final = datetime.now(UTC) + timedelta(days=1)
MIB: Final = 1 << 20


class Later(SystemClock):
    """A clock as it will be in an hour."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=1)


async def lives(ledger: Ledger, **said: Any) -> None:
    now = ledger.clock.now()
    own: dict[str, Any] = {"worker": "w9", "host": "h", **said}
    info = WorkerInfo(pid=1, queues=(runs.QUEUE,), started_at=now, renewed_at=now, **own)
    await ledger.leases.renew(info, 0)


async def a_slow_queue(ledger: Ledger) -> None:
    await lives(ledger)
    await runs.plain(ledger, "old")
    ledger.clock = Later()


async def a_limit_that_code_has_otherwise(ledger: Ledger) -> None:
    await set_limit(ledger, "crm", {"slots": 5}, by="ann")
    await lives(ledger, limits={"crm": Terms(slots=3)})


async def a_schedule_that_code_has_otherwise(ledger: Ledger) -> None:
    await declare(ledger, "nightly", every_s=3_600)
    await lives(ledger, schedules={"nightly": "v2"})


async def fill(ledger: Ledger, part: float) -> None:
    """Fill a part of a ledger of 16 MiB with inputs."""
    for number in range(int(part * 16 * MIB) // 60_000):
        ref = JobRef(queue=runs.QUEUE, job_id=f"big-{number}")
        order = Order(input=msgspec.Raw(msgspec.json.encode({"text": "x" * 60_000})))
        await ledger.execute(ref, Enqueue(ref=ref, task="send", order=order, run_at=SOON))


async def a_store_that_is_full(ledger: Ledger) -> None:
    await fill(ledger, 0.85)


async def a_store_that_will_be_full(ledger: Ledger) -> None:
    await fill(ledger, 0.2)
    ledger.clock = Later()


async def a_reactor_that_stands_still(ledger: Ledger) -> None:
    config = reactor_consumer((), ack_wait_s=1.0)
    # The second one walks behind a queue's work, and is no reactor that is late.
    for name in ("children", f"{RECONCILER_CONSUMER_PREFIX}mail_normal"):
        await ensure_consumer(ledger.inbox, ledger.names.ledger_stream, name, config)
    await declare(ledger, "weekly", every_s=604_800)
    ledger.clock = Later()


async def a_task_that_fails(ledger: Ledger) -> None:
    for number in range(20):
        await runs.enqueued(ledger, f"j{number}", max_attempts=9)
        await runs.do(ledger, f"j{number}", Claim(worker="w1", lease_s=600))
        end = Complete(epoch=0) if number % 2 else Fail(epoch=0, error=runs.BOOM, retry_at=SOON)
        await runs.do(ledger, f"j{number}", end)


async def a_webhook_that_fails(ledger: Ledger) -> None:
    target = WebhookTarget(url="https://shop.example/hooks")
    definition = WebhookDefinition(target=target, events=("completed",), secrets=("env:X",))
    await put_webhook(ledger, "shop", definition, by="ann")
    await change_webhook(ledger, "shop", FailDelivery(why="503"))


async def a_watch_that_fires(ledger: Ledger) -> None:
    await change_watch(
        ledger, "deep", SetWatch(definition=WatchDefinition(figure="depth", above=10)), by="ann"
    )
    newest = (await ledger.log.head()).last_sequence
    await change_watch(ledger, "deep", Judge(value=12.0, position=newest, sequence=newest, fires=True))


#: What is made; kind, level and object; a pattern of what is found.
TABLE: Final[Mapping[Callable[[Ledger], Awaitable[None]], tuple[str, str, str, str]]] = {
    a_slow_queue: ("queue_slow", "warn", "queue orders", r"1 job waits: 1 worker cannot keep up"),
    a_limit_that_code_has_otherwise: (
        "limit_differs",
        "warn",
        "limit crm",
        r"the code of w9 has slots 3; ann set it otherwise",
    ),
    a_schedule_that_code_has_otherwise: (
        "schedule_differs",
        "warn",
        "schedule nightly",
        r"the code of w9 has it otherwise than \S+ declared it",
    ),
    a_store_that_is_full: (
        "store_fills",
        "warn",
        "the ledger",
        r"1[34]\.\d MiB of 16\.0 MiB are used(, \d+\.\d MiB with what waiting jobs still need)?: .*it takes no new jobs",
    ),
    a_store_that_will_be_full: (
        "store_fills",
        "warn",
        "the ledger",
        r"3\.\d MiB of 16\.0 MiB are used(, .*)?; as it grew lately, it is full in 4 h[^:]*: above 90% it takes no new jobs",
    ),
    a_reactor_that_stands_still: (
        "reactor_late",
        "fail",
        "reactor children",
        r"1 event waits for it, the first for 1 h; no worker hosts the reactors",
    ),
    a_task_that_fails: (
        "task_fails",
        "warn",
        "task order",
        r"50 % of its 20 attempts of the last 5 minutes failed; usually none does",
    ),
    a_webhook_that_fails: (
        "webhook_fails",
        "warn",
        "webhook shop",
        r"nothing arrives at \S+shop.example\S*",
    ),
    a_watch_that_fires: ("watch_fires", "warn", "watch deep", r"it fires: .+; it was 12"),
}


@pytest.mark.parametrize("make", TABLE, ids=lambda make: make.__name__)
async def test_what_hurts_is_named_with_a_command_that_is_accepted(
    make: Callable[[Ledger], Awaitable[None]],
    gateway: Gateway,
    ledger: Ledger,
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, level, object_, found = TABLE[make]
    await make(ledger)
    async with gateway.projection.opened() as view:
        told = [each for each in await diagnose(ledger, view) if each.kind == kind]
    assert [(each.level, each.object) for each in told] == [(level, object_)]
    assert re.fullmatch(found, told[0].found), told[0].found
    assert told[0].since is not None
    cli = CommandLine(nats_server.url, capsys)
    await anyio.to_thread.run_sync(_type, cli, ledger.names.environment, told[0])


def _type(cli: CommandLine, environment: str, told: Diagnosis) -> None:
    """Type the commands of an advice that take no word of one's own."""
    for command in re.findall(r"`jobledger ([^`]+)`", told.advice):
        if not re.search(r"\b[A-Z]+\b", command) and not command.startswith("audit archive"):
            answer = cli.run(*shlex.split(command), "--url", cli.url, "--environment", environment)
            assert answer.code == 0, (command, answer)


async def _only(gateway: Gateway, ledger: Ledger, kind: str) -> Diagnosis:
    async with gateway.projection.opened() as view:
        (told,) = [each for each in await diagnose(ledger, view) if each.kind == kind]
    return told


@pytest.mark.parametrize(
    ("make", "part"), [(a_store_that_is_full, 0.8 / 0.85), (a_store_that_will_be_full, 0.1 / 0.2)]
)
async def test_a_store_fills_since_the_event_that_made_it_too_full(
    make: Callable[[Ledger], Awaitable[None]], part: float, gateway: Gateway, ledger: Ledger
) -> None:
    """As it grew, a week is too little from the first event on; below a tenth of its room nobody asks for that."""
    await make(ledger)
    since = (await _only(gateway, ledger, "store_fills")).since
    stored = [each.stored_at async for batch in ledger.log.read_messages() for each in batch]
    assert since is not None
    assert abs(stored.index(since) - part * len(stored)) < 3


async def test_doctor_fails_a_day_before_the_ledger_is_full_while_nobody_moves_events(
    ledger: Ledger, tmp_path: Path
) -> None:
    async def found() -> tuple[str, str]:
        check = await _check_retention(ledger)
        return check.status, check.found

    await fill(ledger, 0.2)
    assert await found() == ("ok", "nobody moves old events away"), "it is too young for a forecast"
    ledger.clock = Later()
    status, said = await found()
    assert status == "fail"
    assert re.fullmatch(r"nobody moves old events away; as it grew lately, the ledger is full in 4 h.*", said)
    await ledger.do(SetRetention(to=str(tmp_path)))
    status, said = await found()
    assert status == "fail"
    assert re.fullmatch(rf"nobody moves old events into {tmp_path}; .* is full in 4 h.*", said)


async def test_a_task_fails_since_the_minute_of_its_first_failure(gateway: Gateway, ledger: Ledger) -> None:
    await a_task_that_fails(ledger)
    first = (await (await ledger.job("j0")).history())[-1]
    since = (await _only(gateway, ledger, "task_fails")).since
    assert since == first.stored_at.replace(second=0, microsecond=0)


async def test_a_clock_is_apart_since_the_first_process_of_its_host_saw_it(
    gateway: Gateway, ledger: Ledger
) -> None:
    """A process of an earlier release says how far, and not since when."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    said = [("a", None), ("a", noon + timedelta(hours=1)), ("a", noon), ("b", None)]
    for number, (host, since) in enumerate(said):
        await lives(ledger, worker=f"w{number}", host=host, clock_apart_s=-9.0, clock_apart_since=since)
    async with gateway.projection.opened() as view:
        told = [each for each in await diagnose(ledger, view) if each.kind == "clock_apart"]
    assert [(each.object, each.since) for each in told] == [("host a", noon), ("host b", None)]


def test_every_kind_is_tried() -> None:
    """The others are in `test_diagnoses`, `test_doctor_counts`, `test_reserved_ids` and `test_replicas`."""
    tried = {kind for kind, *_ in TABLE.values()} | {"schedule_late", "id_taken", "clock_apart"}
    tried |= {"copies_missing"}
    tried |= {"queue_without_worker", "queue_paused", "limit_undefined", "limit_closed", "dead_letters"}
    assert tried | {"runs_wait_for_each_other", "run_waits_for_person"} == {*KINDS}


async def test_a_closed_limit_is_not_to_be_removed_where_its_jobs_would_stay_held(
    gateway: Gateway, ledger: Ledger
) -> None:
    await set_limit(ledger, "crm", {"slots": 0}, by="ann")
    await set_limit(ledger, "tenant", {"slots": 1}, by="ann")
    await set_limit(ledger, "tenant:acme", {"slots": 0}, by="ann")
    async with gateway.projection.opened() as view:
        found = await diagnose(ledger, view)
    assert {each.object: each.advice for each in found if each.kind == "limit_closed"} == {
        "limit crm": "`jobledger limits set crm --slots N` lets them start",
        "limit tenant:acme": "`jobledger limits set tenant:acme --slots N`, or `jobledger limits remove tenant:acme` "
        "lets them start",
    }
