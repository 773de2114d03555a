"""States of snapshots of the limits: stored as long as somebody may begin with them, and no longer, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from pathlib import Path

import msgspec
import pytest
from tests.support.jetstream import api
from tests.support.limited import archive_beyond, begun, define, enqueue, grants, take_snapshot
from tests.support.working import LIMIT_S, Connect, ended, working

from jobledger.admin.grants_again import authors, compare_grants, decided_again
from jobledger.audit.export import import_export, write_export
from jobledger.audit.verify import verify
from jobledger.ledger import JobState, Ledger, task
from jobledger.ledger.model.errors import PayloadMissingError, ServerUnreachableError, WrongSequenceError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.limits.flow import FLOW, Snapshotted
from jobledger.ledger.nats.payloads import Stores
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.flow import source
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.reactor import FlowReactor
from jobledger.workers.reactors.flow.source import read
from jobledger.workers.reactors.flow.start import begin, snapshot, tidy
from jobledger.workers.reactors.flow.turn import FlowOptions
from jobledger.workers.reactors.flow.view import present

pytestmark = pytest.mark.anyio


@task(queue="work")
async def work() -> None: ...


async def references(ledger: Ledger) -> list[PayloadRef]:
    """Return where the states of all snapshots were put, the oldest first."""
    found: list[PayloadRef] = []
    async for batch in ledger.log.read_messages(subject=FLOW.of_type(ledger.names, "snapshotted")):
        events = [event for each in batch if isinstance(event := FLOW.decode(each), Snapshotted)]
        found += [event.state_ref for event in events if event.state_ref is not None]
    return found


async def states(ledger: Ledger) -> list[str]:
    """Return what became of the states of all snapshots, the oldest first."""
    return [await ledger.inputs.state_of(each) for each in await references(ledger)]


async def test_a_state_is_removed_once_two_newer_snapshots_are_accepted(
    ledger: Ledger, connected: Connect
) -> None:
    await enqueue(ledger, work, "nobody-defined-it")
    async with connected(inline_bytes_max=1) as one, connected(inline_bytes_max=1) as two:
        chain, folding = await begun(one)
        found: list[list[str]] = []
        for _ in range(4):
            await snapshot(one, chain, folding, by="one")
            await tidy(one, chain)
            found.append(await states(ledger))
        assert found[1:] == [
            ["stored", "stored"],
            ["gone", "stored", "stored"],
            ["gone", "gone", "stored", "stored"],
        ]
        assert len(set(await references(ledger))) == 4  # though they say the same
        await snapshot(one, chain, folding, by="one")  # and it dies before it removes what it may
        chain, folding = await begun(two)
        await tidy(two, chain)
        assert await states(ledger) == ["gone", "gone", "gone", "stored", "stored"]
    report = await verify(ledger.log, payloads=(Stores(ledger.inputs, ledger.results),))
    assert report.sound, report.text()


async def test_the_state_of_a_snapshot_that_came_second_is_removed(
    ledger: Ledger, connected: Connect
) -> None:
    await enqueue(ledger, work, "nobody-defined-it")
    async with connected(inline_bytes_max=1) as one:
        (chain, folding), (late, same) = await begun(one), await begun(one)
        await snapshot(one, chain, folding, by="one")
        with pytest.raises(WrongSequenceError):
            await snapshot(one, late, same, by="late")
        (refused,) = late.superseded()
        assert await one.inputs.state_of(refused) == "stored"
        await tidy(one, late)
        assert (await one.inputs.state_of(refused), late.superseded()) == ("gone", [])
        with pytest.raises(WrongSequenceError):  # the very state that is stored
            await snapshot(one, late, same, by="one")
        await begin(one, late, same)
        await tidy(one, late)
        assert await states(ledger) == ["stored"]


async def test_who_begins_with_a_state_that_is_removed_at_that_moment_takes_the_newest_one(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(ledger, work, "nobody-defined-it")
    async with connected(inline_bytes_max=1) as one:
        chain, folding = await begun(one)
        await snapshot(one, chain, folding, by="one")
        oldest, newest = await chain.newest_snapshot(), Chain.newest_snapshot
        for _ in range(2):
            await snapshot(one, chain, folding, by="one")
        await tidy(one, chain)
        answers = [oldest]

        async def answer(self: Chain) -> tuple[int, Snapshotted] | None:
            return answers.pop() if answers else await newest(self)

        monkeypatch.setattr(Chain, "newest_snapshot", answer)
        async with present(ledger) as granter:
            assert (len(granter.lines), answers) == (1, [])


async def _with_a_job_behind_its_newest_snapshot(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "all", slots=0)
    first = await enqueue(ledger, work, "all", job_id="first")
    async with connected(inline_bytes_max=1) as one:
        await take_snapshot(one)
    await enqueue(ledger, work, "all", job_id="second")
    assert await states(ledger) == ["stored"]
    assert (await first.snapshot()).state is JobState.HELD


async def test_a_reactor_begins_from_the_first_event_in_a_ledger_that_was_brought_back(
    ledger: Ledger, connected: Connect, tmp_path: Path
) -> None:
    await _with_a_job_behind_its_newest_snapshot(ledger, connected)
    names = ledger.names
    await write_export(ledger.log, tmp_path)
    for stream in (names.ledger_stream, f"OBJ_{names.payloads_bucket}"):
        assert (await api(ledger.inbox, f"STREAM.DELETE.{stream}", {}))["success"]
    async with connected() as again:
        await import_export(tmp_path, again.log)
        assert await states(again) == ["gone"], "no export has the states of snapshots"
        async with present(again) as granter:
            assert [entry.job for entry, _ in granter.lines.oldest()] == ["first", "second"]
        await define(again, "all", slots=1)
        async with working(again, work):
            for job in ("first", "second"):
                assert (await ended(await again.job(job))).state is JobState.COMPLETED
        assert [job.job for event in await grants(again) for job in event.jobs] == ["first", "second"]
        report = await verify(again.log)
        assert report.sound, report.text()


async def test_without_the_first_events_a_state_that_is_gone_is_missed(
    ledger: Ledger, connected: Connect, tmp_path: Path
) -> None:
    await _with_a_job_behind_its_newest_snapshot(ledger, connected)
    await archive_beyond(ledger, tmp_path, 1)
    (state,) = await references(ledger)
    await ledger.inputs.remove(state)
    with pytest.raises(PayloadMissingError):
        await begun(ledger)


async def test_a_worker_removes_states_and_jobs_go_on(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = functools.partial(FlowReactor, options=FlowOptions(snapshot_events=10))
    monkeypatch.setattr(hosts, "FlowReactor", make)
    await define(ledger, "all", slots=3)
    async with connected(inline_bytes_max=1) as other, working(other, work):
        async with asyncio.timeout(LIMIT_S):
            found: list[str] = []
            while found.count("gone") < 2:
                await ended(await enqueue(ledger, work, "all"))
                with contextlib.suppress(ServerUnreachableError):  # it was removed while it was read
                    found = await states(ledger)
    assert found[-1] == "stored"
    async with connected() as other, working(other, work):
        await ended(await enqueue(ledger, work, "all"))
        assert (await states(ledger))[0] == "gone"
        again = await compare_grants(ledger)  # from the first event on, where a snapshot's state is gone
        assert (again.archived, again.different) == (0, 0)
        assert again.grants == len(await grants(ledger))

        head = await ledger.log.head()
        turns = await authors(ledger, head)
        assert any(turn.snapshot for turn in turns)
        for state in await references(ledger):  # while they are compared
            await ledger.inputs.remove(state)
        decided = [await decided_again(ledger, head, turn) for turn in turns]
        assert sum(each.grants for each in decided) == again.grants
        late = msgspec.structs.replace(head, first_sequence=2)
        behind = [await decided_again(ledger, late, turn) for turn in turns if turn.snapshot]
        assert sum(each.archived for each in behind) == sum(turn.known for turn in turns if turn.snapshot) > 0


async def test_a_short_part_of_a_ledger_is_read_as_a_long_one(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await define(ledger, "all", slots=3)
    async with connected() as other, working(other, work):
        for job in (
            await ledger.enqueue(work),
            await enqueue(ledger, work, "all"),
        ):
            await ended(job)
        await (await enqueue(ledger, work, "nobody-defined-it")).cancel(reason="no")
    last = (await ledger.log.head()).last_sequence

    async def found() -> list[tuple[int, str]]:
        return [
            (each.stream_sequence, each.subject) async for batch in read(ledger, 1, last) for each in batch
        ]

    short = await found()
    monkeypatch.setattr(source, "SHORT", 0)
    assert short == await found()
    assert 6 < len(short) < last
    leaves = [subject.split(".", 4)[-1] for _, subject in short]
    assert {"held", "cancelled", "completed.limited"} <= set(leaves)
    prefix = short[0][1].partition(".")[0]
    for leaf, does in {
        "completed": False,
        "completed.child.held": False,
        "completed.child.p.limited": True,
    }.items():
        assert source.matters(f"{prefix}.job.q.id.{leaf}") is does, leaf
