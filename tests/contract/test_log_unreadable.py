"""What is no event: every reader of either log sets it aside, and whoever appends goes on behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from tests.support.log_entries import LIMIT_S, NOW, collect, sequences

from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.commands import Claim, Complete, Enqueue, Stamp
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.lock import LOCK, Acquire, Release, Released, decide
from jobledger.ledger.model.log import Entry, Log, end_of_chain
from jobledger.ledger.model.subjects import JobRef, LockRef

pytestmark = pytest.mark.anyio

REF: Final = JobRef(queue="email", job_id="j1")
LOCK_REF: Final = LockRef(scope="account", lock_id="42")
ORDER: Final = Enqueue(ref=REF, task="send", order=Order(input=msgspec.Raw(b"{}")))
COMPLETED: Final = {
    "type": "completed",
    "v": 1,
    "at": "2026-01-02T00:00:00.000000Z",
    "by": "anybody",
    "prev": "",
    "job": "j1",
    "queue": "email",
    "task": "send",
    "attempt": 1,
}
OF_THE_JOB: Final = "job.email.j1."
#: By what is wrong with it: the end of its subject, and its bytes.
RUBBISH: Final[dict[str, tuple[str, bytes]]] = {
    "no JSON": (OF_THE_JOB + "completed", b"\xff\x00 rubbish"),
    "nothing": (OF_THE_JOB + "started", b""),
    "no object": (OF_THE_JOB + "started", b"[1]"),
    "fields missing": (OF_THE_JOB + "queued.normal", b'{"type":"queued"}'),
    "another job": (OF_THE_JOB + "completed", msgspec.json.encode({**COMPLETED, "job": "j2"})),
    "another type": (OF_THE_JOB + "started", msgspec.json.encode(COMPLETED)),
    "no type that there is": (
        OF_THE_JOB + "whatever",
        msgspec.json.encode({**COMPLETED, "type": "what ever"}),
    ),
    "a type of nowhere": (OF_THE_JOB + "finished", b'{"type":"finished"}'),
    "a huge number": (OF_THE_JOB + "completed", msgspec.json.encode({**COMPLETED, "attempt": 2**63})),
    "a number below 0": (OF_THE_JOB + "completed", msgspec.json.encode({**COMPLETED, "attempt": -1})),
    "the year 1": (
        OF_THE_JOB + "completed",
        msgspec.json.encode({**COMPLETED, "at": "0001-01-01T00:00:00Z"}),
    ),
    "no zone": (OF_THE_JOB + "completed", msgspec.json.encode({**COMPLETED, "at": "2026-01-02T00:00:00"})),
    "a wildcard": ("job.*.j9.completed", msgspec.json.encode({**COMPLETED, "queue": "*", "job": "j9"})),
    "a subject too short": ("job.email", b"{}"),
    "no aggregate": ("nothing.at.all", b"{}"),
    "a lock of nowhere": ("lock.account.42.acquired", b'{"type":"acquired"}'),
    "another lock": (
        "lock.account.42.released",
        msgspec.json.encode(Released(at=NOW, by="w", scope="account", lock="43", fencing_number=1)),
    ),
}


async def put(log: Log, *kinds: str) -> int:
    """Store rubbish as any app of the account can; return the last stream sequence."""
    sequence = 0
    for kind in kinds:
        end, data = RUBBISH[kind]
        subject = f"{log.names.ledger_root}.{end}"
        chain = log.names.chain(REF) if end.startswith(OF_THE_JOB) else subject
        last = await log.last(chain)
        expected = 0 if last is None else last.stream_sequence
        sequence = await log.append([Entry(subject, data, chain, expected)])
    return sequence


def clock() -> Callable[[], Stamp]:
    now = datetime(2026, 1, 2, tzinfo=UTC)

    def stamp() -> Stamp:
        nonlocal now
        now += timedelta(seconds=1)
        return Stamp(at=now, by="w1")

    return stamp


async def messages(log: Log, **options: Any) -> list[Message]:
    async with asyncio.timeout(LIMIT_S):
        return [message async for batch in log.read_messages(**options) for message in batch]


async def test_every_kind_of_rubbish_is_set_aside_with_its_bytes_and_a_reason(log: Log) -> None:
    await transact(log, REF, ORDER, clock())
    await put(log, *RUBBISH)
    found = await messages(log)
    assert isinstance(found[0], StoredEvent)
    for number, (kind, (end, data)) in enumerate(RUBBISH.items(), start=2):
        message = found[number - 1]
        assert isinstance(message, Unreadable), kind
        assert (message.stream_sequence, message.data) == (number, data), kind
        assert message.subject == f"{log.names.ledger_root}.{end}", kind
        assert f"stream sequence {number} " in message.why, kind
    assert await log.get(len(found)) == found[-1]
    assert sequences(await collect(log.read())) == [1]
    assert sequences(await collect(log.read(from_sequence=2))) == []
    assert sequences(await log.read_chain(log.names.all_events)) == [1]


@pytest.mark.parametrize("kind", [kind for kind, (end, _) in RUBBISH.items() if end.startswith(OF_THE_JOB)])
async def test_a_job_goes_its_way_whatever_lies_among_its_events(log: Log, kind: str) -> None:
    """Before its first event, between any two, and behind the last: neither state nor links change."""
    stamp = clock()
    assert (await put(log, kind)) == 1
    await transact(log, REF, ORDER, stamp)
    await put(log, kind)
    claimed = await transact(log, REF, Claim(worker="w1", lease_s=15), stamp)
    assert claimed.job is not None
    assert claimed.job.claim_epoch == claimed.last_sequence == 4
    await put(log, kind, kind)
    # A worker that knows nothing of it: its first try is refused, and the second says the same.
    done = await transact(log, REF, Complete(epoch=4, result=msgspec.Raw(b"1")), stamp, known=claimed)
    assert await put(log, kind) == 8
    assert done.last_sequence == 7
    view = await load(log, REF)
    assert view.job is not None
    assert (view.job.state, len(view.job.attempts), view.last_sequence) == (JobState.COMPLETED, 1, 8)
    history = await log.read_chain(log.names.chain(REF))
    assert (sequences(history), history.last_sequence) == ([2, 4, 7], 8)
    assert [each.event.prev for each in history] == ["", history[0].hash, history[1].hash]


async def test_a_lock_is_taken_and_given_back_behind_rubbish(log: Log) -> None:
    stamp, chain = clock(), LOCK.chain(log.names, "account", "42")
    for command in (Acquire(holder="w1", lease_s=15), Release(fencing_number=2)):
        root = log.names.ledger_root
        last = await end_of_chain(log, chain)
        sequence = await log.append(
            [Entry(f"{root}.lock.account.42.acquired", b"rubbish", chain, last.last_sequence)]
        )
        view = LOCK.view(*await end_of_chain(log, chain))
        assert view.last_sequence == sequence
        event = decide(LOCK_REF, view.state, command, stamp())
        await log.append(LOCK.link(log.names, [event], view))
    first, second = [
        LOCK.decode(each) for each in await messages(log, subject=chain) if each.data != b"rubbish"
    ]
    assert (first.prev, second.prev) == ("", (await messages(log))[1].hash)


async def test_more_subjects_than_the_server_answers_at_once_hide_no_job(log: Log) -> None:
    stamp = clock()
    await transact(log, REF, ORDER, stamp)
    root, chain = log.names.ledger_root, log.names.chain(REF)
    for start in range(0, 1_100, 550):
        entries = [
            Entry(f"{root}.{OF_THE_JOB}x{start + number}", b"?", chain, None if number else start + 1)
            for number in range(550)
        ]
        await log.append(entries)
    other = JobRef(queue="email", job_id="j2")
    await transact(log, other, msgspec.structs.replace(ORDER, ref=other), stamp)
    async with asyncio.timeout(LIMIT_S):
        views = await asyncio.gather(load(log, REF), load(log, other))
    assert [view.job and view.job.state for view in views] == [JobState.QUEUED, JobState.QUEUED]
    assert views[0].last_sequence == 1_101
