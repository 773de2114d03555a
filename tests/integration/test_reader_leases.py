"""Leases of readers: they are seen by upgrades, counted by nobody, lost by a frozen one, and not missed without the right."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from tests.support.earlier import of_an_earlier_release
from tests.support.renewals import renewals
from tests.support.roles import authorization, printed, user
from tests.support.secured import secured
from tests.support.working import Connect, until

from jobledger.admin.upgrades import finish_upgrade, look_at_upgrade
from jobledger.admin.workers import list_workers
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import PermissionRefusedError, RefusedError, ServerUnreachableError
from jobledger.ledger.model.forms import FORM, FORM_FIRST
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections.metrics.exporter import Exporter
from jobledger.projections.metrics.facts import server_facts

pytestmark = pytest.mark.anyio


async def _readers(ledger: Ledger) -> list[str]:
    return sorted(each.reader for each in (await look_at_upgrade(ledger)).processes)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers take their leases at once, nearly."""
    monkeypatch.setattr("jobledger.ledger.reader_leases._AGAIN_S", 0.05)


async def _become(ledger: Ledger, *readers: str) -> None:
    async with asyncio.timeout(20):
        while await _readers(ledger) != sorted(readers):
            await asyncio.sleep(0.02)


async def test_readers_are_seen_and_counted_as_workers_by_nobody(connected: Connect, tmp_path: Path) -> None:
    async with connected() as operator, connected() as reading:
        async with reading.subscription("billing"), reading.subscription("mail"):
            exporting = asyncio.create_task(Exporter(reading, tmp_path / "p.db").run())
            async with reading.reader_leases.held("gateway"):
                await _become(operator, "exporter", "gateway", "subscription")  # one for both subscriptions
                assert not (await look_at_upgrade(operator)).behind
                assert await operator.leases.all() == []
                assert await list_workers(operator) == []
                assert not (await server_facts(operator, 0)).workers
            await _become(operator, "exporter", "subscription")
            exporting.cancel()
            await asyncio.wait({exporting})
            await _become(operator, "subscription")
        await _become(operator)


async def test_what_was_not_ended_ends_with_its_client(connected: Connect) -> None:
    async with connected() as operator:
        async with connected() as reading:
            await reading.subscription("billing").open()
            reading.reader_leases.begin("projector")
            await _become(operator, "projector", "subscription")
        assert await _readers(operator) == []


async def test_no_upgrade_is_finished_while_an_earlier_reader_lives(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as operator, connected() as reading:
        await of_an_earlier_release(operator)
        monkeypatch.setattr("jobledger.ledger.lease_keeper.FORM", FORM_FIRST)
        async with reading.subscription("billing"):
            await _become(operator, "subscription")
            with pytest.raises(RefusedError, match="cannot read form 2: stop them"):
                await finish_upgrade(operator, reason="")
        assert (await finish_upgrade(operator, reason="")).form == FORM


async def test_a_reader_that_was_frozen_takes_another_lease(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(lease_s=1.0) as reading, connected() as operator:
        is_awake = renewals(reading, monkeypatch)
        async with reading.reader_leases.held("sealer"):
            await _become(operator, "sealer")
            (before,) = (await look_at_upgrade(operator)).processes
            is_awake.clear()
            await _become(operator)  # it expired
            is_awake.set()
            await _become(operator, "sealer")
            (after,) = (await look_at_upgrade(operator)).processes
            assert after.process != before.process


async def test_a_reader_begins_while_no_lease_can_be_taken_and_takes_one_later(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as reading, connected() as operator:
        renew, tries = reading.leases.renew, list[str]()

        async def refused_twice(info: WorkerInfo, revision: int) -> int:
            tries.append(info.worker)
            if len(tries) <= 2:
                raise ServerUnreachableError("no answer")
            return await renew(info, revision)

        monkeypatch.setattr(reading.leases, "renew", refused_twice)
        async with reading.subscription("billing"):
            await _become(operator, "subscription")


async def test_a_reader_without_the_right_reads_on_and_says_so_once(
    nats_server_binary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    all_rights = printed("subscriber", "--subscription", "billing")
    narrow = "".join(line for line in all_rights.splitlines(keepends=True) if '"$KV.WORKERS' not in line)
    assert narrow != all_rights
    caplog.set_level(logging.INFO, logger="jobledger.connection")  # after the command line set its own
    rights = authorization(user("subscriber", narrow))
    with secured(nats_server_binary, tmp_path, rights) as server:
        async with (
            connect(server.url(), user="all", password="p", ledger_bytes_max=64 << 20) as ledger,
            connect(server.url(), user="subscriber", password="p", create=False) as reading,
            reading.subscription("billing"),
        ):

            def said() -> list[int]:
                return [each.levelno for each in caplog.records if "$KV.WORKERS" in each.getMessage()]

            await until(lambda: said() != [])
            assert said() == [logging.INFO]
            assert await _readers(ledger) == []


async def test_a_reader_that_gets_the_right_later_takes_a_lease(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.reader_leases._REFUSED_AGAIN_S", 0.05)
    async with connected() as reading, connected() as operator:
        renew, tries = reading.leases.renew, list[str]()

        async def refused_twice(info: WorkerInfo, revision: int) -> int:
            tries.append(info.worker)
            if len(tries) <= 2:
                raise PermissionRefusedError("publish", "$KV.WORKERS.x")
            return await renew(info, revision)

        monkeypatch.setattr(reading.leases, "renew", refused_twice)
        async with reading.subscription("billing"):
            await _become(operator, "subscription")


async def test_who_follows_events_without_a_name_is_seen_while_that_lasts(connected: Connect) -> None:
    async with connected() as reading, connected() as operator:
        async with reading.events(live=True) as events:
            following = asyncio.create_task(anext(events))
            await _become(operator, "follower")
            following.cancel()
            await asyncio.wait({following})
        await _become(operator)


async def test_who_reads_for_a_moment_writes_nothing(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.reader_leases._AGAIN_S", 60.0)
    async with connected() as operator, connected() as reading:
        for _ in range(20):
            async with reading.subscription("billing"):
                pass
        assert await operator.leases.all(clients=True) == []


async def test_workers_are_found_behind_more_readers_than_one_answer_has(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.nats.leases._AT_ONCE", 3)
    async with connected() as operator:
        now = operator.clock.now()
        worker = WorkerInfo(worker="zz", host="zz", pid=1, queues=("mail",), started_at=now, renewed_at=now)
        for number in range(10):
            reader = msgspec.structs.replace(worker, worker=f"app-{number}", kind="client")
            await operator.leases.renew(reader, 0)
        await operator.leases.renew(worker, 0)
        assert [each.worker for each in await operator.leases.all()] == ["zz"]
        assert len(await operator.leases.all(clients=True)) == 11
