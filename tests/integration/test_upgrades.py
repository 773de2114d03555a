"""The end of an upgrade: until it, nothing is appended that an earlier release cannot read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.command_line import CommandLine
from tests.support.earlier import of_an_earlier_release
from tests.support.roles import authorization, printed, user
from tests.support.secured import secured
from tests.support.working import LIMIT_S, Connect, until, working

import jobledger.admin.upgrades as upgrades_module
from jobledger.admin.ledger_size import resize_ledger
from jobledger.admin.upgrades import finish_upgrade, look_at_upgrade
from jobledger.ledger import Ledger, Retry, connect, task
from jobledger.ledger.model.errors import (
    PermissionRefusedError,
    RefusedError,
    ServerUnreachableError,
    StreamMismatchError,
)
from jobledger.ledger.model.forms import FORM, FORM_FIRST
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats import api
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.streams import raise_form
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@task
async def once_more(tries: list[int]) -> int | Retry:
    """Fail the first time."""
    TRIES.append(1)
    return len(TRIES) if len(TRIES) % 2 == 0 else Retry(delay_s=0)


TRIES: list[int] = []


async def _types(ledger: Ledger, job: str) -> list[tuple[str, int]]:
    chain = ledger.names.chain(JobRef(queue="default", job_id=job))
    batches = [batch async for batch in ledger.log.read_messages(subject=chain)]
    found = [msgspec.json.decode(each.data) for batch in batches for each in batch]
    return [(each["type"], each["v"]) for each in found]


async def _retried(ledger: Ledger, job: str) -> list[tuple[str, int]]:
    async with working(ledger, once_more):
        handle = await ledger.enqueue(once_more.options(id=job), [])
        await handle.result(timeout_s=LIMIT_S)
    return await _types(ledger, job)


async def test_a_new_ledger_has_the_newest_form_and_one_without_a_form_the_first(ledger: Ledger) -> None:
    assert (await ledger.log.head()).form == FORM
    assert await ledger.learn_form() == FORM
    await of_an_earlier_release(ledger)
    assert (await ledger.log.head()).form == FORM_FIRST


async def test_a_retry_is_written_in_the_ledgers_form(connected: Connect) -> None:
    async with connected() as ledger:
        assert ("failed", 2) in await _retried(ledger, "newest")
        await of_an_earlier_release(ledger)
        before = await _retried(ledger, "first")
        assert ("failed", 1) in before
        assert before.count(("queued", 1)) == 2
        done = await finish_upgrade(ledger, reason="all run it")
        assert (done.form, done.before, done.behind) == (FORM, FORM_FIRST, 0)
        assert ("failed", 2) in await _retried(ledger, "raised")


async def test_an_upgrade_is_not_finished_while_a_living_process_reads_less(ledger: Ledger) -> None:
    await of_an_earlier_release(ledger)
    now = ledger.clock.now()
    old = WorkerInfo(
        worker="web1-1-00",
        host="web1",
        pid=1,
        queues=("email",),
        started_at=now,
        renewed_at=now,
        version="0.1.0",
    )
    revision = await ledger.leases.renew(old, 0)
    (behind,) = (await look_at_upgrade(ledger)).behind
    assert (behind.process, behind.version, behind.reads) == ("web1-1-00", "0.1.0", FORM_FIRST)
    events = (await ledger.log.head()).last_sequence
    with pytest.raises(RefusedError, match=r"web1-1-00 \(0\.1\.0\) cannot read form 2: stop them"):
        await finish_upgrade(ledger, reason="")
    head = await ledger.log.head()
    assert (head.last_sequence, head.form) == (events, FORM_FIRST)
    assert (await finish_upgrade(ledger, reason="it hangs", force=True)).behind == 1
    await ledger.leases.renew(msgspec.structs.replace(old, stopped=True), revision)
    assert not (await look_at_upgrade(ledger)).behind


async def test_an_end_that_died_between_its_event_and_the_setting_goes_on_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await of_an_earlier_release(ledger)

    async def dies(*_: object) -> None:
        raise ServerUnreachableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(upgrades_module, "raise_form", dies)
        with pytest.raises(ServerUnreachableError):
            await finish_upgrade(ledger, reason="")
    events = (await ledger.log.head()).last_sequence
    assert (await finish_upgrade(ledger, reason="")).before == FORM_FIRST
    assert (await finish_upgrade(ledger, reason="")).before == FORM  # nothing is left to do
    head = await ledger.log.head()
    assert (head.last_sequence, head.form) == (events, FORM)


async def test_a_worker_that_runs_learns_of_the_end(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.worker._FORM_EVERY_S", 0.05)
    async with connected() as ledger, connected() as operator:
        await of_an_earlier_release(ledger)
        async with working(ledger, once_more) as worker:
            await worker.taking.wait()
            assert ledger.form == FORM_FIRST
            await finish_upgrade(operator, reason="")
            await until(lambda: ledger.form == FORM)


def test_the_command_line_shows_and_finishes_an_upgrade(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(nats_server.url, capsys)
    cli.with_ledger(of_an_earlier_release)
    shown = cli.run("upgrade", "show", *cli.where)
    assert shown.code == 0
    assert f"the ledger has form 1; jobledger {VERSION} reads up to {FORM}" in shown.out
    assert "run `jobledger upgrade finish`" in " ".join(shown.out.split())
    done = cli.run("upgrade", "finish", "--reason", "all run it", "--json", *cli.where)
    assert done.lines == [{"form": FORM, "before": 1, "behind": 0}]
    assert "has form 2 already" in cli.run("upgrade", "finish", *cli.where).out
    assert "nothing is left to do" in cli.run("upgrade", "show", *cli.where).out
    events = cli.run("events", "tail", "--from", "1", *cli.where).out
    assert "from 1 to 2: all run it" in events


def test_a_program_that_is_older_than_the_ledger_says_so(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(nats_server.url, capsys)
    cli.with_ledger(lambda ledger: raise_form(ledger.inbox, ledger.names.ledger_stream, FORM + 1))
    shown = cli.run("upgrade", "show", *cli.where)
    assert f"too old for the ledger: install a jobledger that reads form {FORM + 1}" in " ".join(
        shown.out.split()
    )
    done = cli.run("upgrade", "finish", *cli.where)
    assert done.code == 4
    assert "a newer release finished its upgrade" in " ".join(done.err.split())


async def _change_beside(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Awaitable[object]]
) -> None:
    """Change a setting while an upgrade is finished: it has read what was before, and writes that back."""
    await of_an_earlier_release(ledger)
    write = api.update_stream

    async def late(inbox: Inbox, stream: str, config: dict[str, Any]) -> object:
        monkeypatch.setattr(api, "update_stream", write)
        await finish_upgrade(ledger, reason="")
        return await write(inbox, stream, config)

    monkeypatch.setattr(api, "update_stream", late)
    await change()
    head = await ledger.log.head()
    assert (head.form, head.bytes_max) == (FORM, 96 << 20)


async def test_a_change_of_size_beside_the_end_of_an_upgrade_keeps_the_form(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _change_beside(ledger, monkeypatch, lambda: resize_ledger(ledger, 96 << 20))


async def test_an_end_of_an_upgrade_looks_again_after_what_it_wrote(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await of_an_earlier_release(ledger)
    write = api.update_stream
    tries: list[int] = []

    async def undone(inbox: Inbox, stream: str, config: dict[str, Any]) -> object:
        tries.append(1)
        if len(tries) > 3:
            return await write(inbox, stream, config)
        return await write(inbox, stream, {**config, "metadata": {}})

    monkeypatch.setattr(api, "update_stream", undone)
    assert (await finish_upgrade(ledger, reason="")).form == FORM
    assert ((await ledger.log.head()).form, len(tries)) == (FORM, 4)  # the first tries whether it may
    await of_an_earlier_release(ledger)
    tries.clear()

    async def ignored(inbox: Inbox, stream: str, _config: dict[str, Any]) -> object:
        return await api.stream_info(inbox, stream)

    monkeypatch.setattr(api, "update_stream", ignored)
    with pytest.raises(RefusedError, match=r"changes the settings of .* all the time"):
        await finish_upgrade(ledger, reason="")


@pytest.mark.parametrize("said", ["two", "", "-1", "2.0", "1" * 10])
async def test_a_form_that_is_no_number_is_told_and_refused(connected: Connect, said: str) -> None:
    async with connected() as ledger:
        stream = ledger.names.ledger_stream
        config = (await api.stream_info(ledger.inbox, stream)).config
        await api.update_stream(
            ledger.inbox, stream, {**config, "metadata": {**config["metadata"], "jobledger_form": said}}
        )
        with pytest.raises(
            StreamMismatchError, match=r"metadata says jobledger_form is .*, must be a number"
        ):
            async with connected():
                pass
        assert (await ledger.log.head()).form == FORM_FIRST  # what runs appends what every program reads


async def test_who_may_not_change_settings_finishes_nothing(nats_server_binary: str, tmp_path: Path) -> None:
    rights = authorization(user("gateway", printed("gateway")))
    with secured(nats_server_binary, tmp_path, rights) as server:
        async with connect(server.url(), user="all", password="p", ledger_bytes_max=64 << 20) as ledger:
            await of_an_earlier_release(ledger)
            async with connect(server.url(), user="gateway", password="p", create=False) as web:
                with pytest.raises(PermissionRefusedError, match=r"STREAM\.UPDATE\.LEDGER"):
                    await finish_upgrade(web, reason="")
            head = await ledger.log.head()
            assert (head.last_sequence, head.form) == (0, FORM_FIRST)
