"""`Ledger.schedules` for applications, asynchronous and blocking: the same verbs, against a real server."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.schedules import declare

from jobledger.audit.verify import verify
from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    InvalidTokenError,
    JobRef,
    Ledger,
    RefusedError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    task,
)
from jobledger.ledger import sync as blocking
from jobledger.ledger.schedules.sync import BlockingSchedules
from jobledger.ledger.schedules.verbs import ScheduleVerbs

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

HOUR = timedelta(hours=1)


@task(queue="reports", max_attempts=3)
async def report(kind: str) -> str:
    return kind


@pytest.mark.anyio
async def test_an_application_declares_looks_and_acts(ledger: Ledger) -> None:
    schedules = ledger.schedules
    weekly = report.options(priority="high")
    made = await schedules.add(
        "weekly", weekly, input={"kind": "w"}, cron="0 6 * * mon", timezone="America/Santiago"
    )
    assert (made.definition.order.priority, made.definition.order.max_attempts) == ("high", 3)
    assert await schedules.get("weekly") == made
    assert (
        await schedules.add(
            "weekly", weekly, input={"kind": "w"}, cron="0 6 * * mon", timezone="America/Santiago"
        )
        == made
    )
    assert made.next_at == (await schedules.next("weekly"))[0]
    assert len(await schedules.next("weekly", 5)) == 5
    with pytest.raises(ScheduleExistsError):
        await schedules.add("weekly", weekly, input={"kind": "x"}, every_s=60)
    changed = await schedules.add("weekly", weekly, input={"kind": "x"}, every_s=60, replace=True, by="ann")
    assert changed.definition.spec.every_s == 60
    assert (await schedules.pause("weekly", reason="why")).paused
    assert await schedules.next("weekly") == []
    with pytest.raises(RefusedError):
        await schedules.pause("weekly")
    assert not (await schedules.resume("weekly")).paused
    with pytest.raises(InvalidInputError, match="kind"):
        await schedules.add("bad", report, input={"sort": "w"}, every_s=60)
    with pytest.raises(InvalidInputError, match="no time zone"):
        await schedules.add("bad", report, input={"kind": "w"}, at=datetime(2090, 1, 1))  # noqa: DTZ001 - refused
    for decided in (
        report.options(id="mine"),
        report.options(delay_s=5),
        report.options(run_at=datetime(2090, 1, 1, tzinfo=UTC)),
    ):
        with pytest.raises(
            ConfigurationError, match="schedule bad: its task has an id, a run_at, a delay_s or a by"
        ):
            await schedules.add("bad", decided, input={"kind": "w"}, every_s=60)
    with pytest.raises(InvalidTokenError):
        await schedules.add("a.b", report, input={"kind": "w"}, every_s=60)
    with pytest.raises(InvalidTokenError):
        await schedules.get("*")
    await schedules.remove("weekly")
    with pytest.raises(ScheduleNotFoundError):
        await schedules.get("weekly")


@pytest.mark.anyio
async def test_triggered_and_backfilled_jobs_are_the_schedules(ledger: Ledger) -> None:
    await ledger.schedules.add("hourly", report, input={"kind": "h"}, every_s=3600)
    ref = await ledger.schedules.trigger("hourly", by="ann")
    job = await (await ledger.job(ref)).snapshot()
    assert (job.task, job.queue, bytes(job.order.input)) == ("report", "reports", b'{"kind":"h"}')
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    refs = await ledger.schedules.backfill("hourly", now - 3 * HOUR, now - HOUR)
    assert refs == [
        JobRef(queue="reports", job_id=f"hourly-{at:%Y%m%dT%H%M%SZ}")
        for at in (now - 3 * HOUR, now - 2 * HOUR, now - HOUR)
    ]
    assert [(await (await ledger.job(each)).snapshot()).order.tick for each in refs] == [
        each.job_id for each in refs
    ]


@pytest.mark.anyio
async def test_a_backfill_finds_the_jobs_that_the_schedule_made_in_another_queue(ledger: Ledger) -> None:
    """Also the job of a tick from before the schedule had hooks, and when somebody else makes what is missing."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    await declare(ledger, "hourly", every_s=3600)
    before = await ledger.schedules.backfill("hourly", begin, begin + HOUR)
    assert {ref.queue for ref in before} == {"cron"}
    await ledger.schedules.add("hourly", report, input={"kind": "h"}, every_s=3600, replace=True)
    after = await ledger.schedules.backfill("hourly", begin, begin + 2 * HOUR)
    third = JobRef(queue="reports", job_id="hourly-20260101T020000Z")
    assert after == [*before, third]
    await declare(ledger, "hourly", every_s=3600, hooks=True)
    with_hooks = await ledger.schedules.backfill("hourly", begin + HOUR, begin + 3 * HOUR)
    hooks = JobRef(queue="cron", job_id="hourly-20260101T030000Z-hooks")
    assert with_hooks == [before[1], third, hooks]
    await ledger.schedules.healed(await ledger.schedules.read("hourly"))
    assert (await verify(ledger.log)).jobs == 4


def test_blocking_code_has_the_same_verbs(nats_server: EmbeddedServer) -> None:
    def verbs(cls: type[Any]) -> dict[str, list[str]]:
        found = {
            name: each for name, each in vars(cls).items() if inspect.isfunction(each) and name[0] != "_"
        }
        return {name: list(inspect.signature(each).parameters) for name, each in found.items()}

    expected = {
        name: parameters
        for name, parameters in verbs(ScheduleVerbs).items()
        if name not in {"declare", "like"}
    }
    assert verbs(BlockingSchedules) == expected
    with blocking.connect(
        nats_server.url, environment="t_sync_schedules", ledger_bytes_max=1 << 24
    ) as ledger:
        made = ledger.schedules.add("hourly", report, input={"kind": "h"}, every_s=3600)
        assert ledger.schedules.get("hourly") == made
        assert ledger.schedules.next("hourly", 2)[0] == made.next_at
        assert ledger.schedules.pause("hourly").paused
        assert not ledger.schedules.resume("hourly").paused
        assert ledger.schedules.reset("hourly").definition.source == "code"
        assert ledger.schedules.trigger("hourly").job_id.startswith("hourly-manual-")
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        assert len(ledger.schedules.backfill("hourly", begin, begin + HOUR)) == 2
        assert ledger.schedules.remove("hourly").removed
