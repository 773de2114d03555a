"""Processes that take, lose and give back locks with views of any age, against a model of a few lines.

A process may read, decide on an old view, repeat an append it made long ago, die between deciding and learning the
answer, or be frozen beyond its lease and go on. Whatever they do, nobody gets a lock whose holder lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.limits import LIMIT_S

from jobledger.audit.verify.chains import Chains
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import LockHeldError, LockLostError, WrongSequenceError
from jobledger.ledger.model.lock import LOCK, Acquire, Acquired, Lock, LockCommand, Release, decide, evolve
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import LockRef

T = TypeVar("T")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
PROCESSES = ("p0", "p1", "p2")
REFS = tuple(LockRef(scope="account", lock_id=each) for each in ("a", "b"))
processes = st.sampled_from(PROCESSES)
locks = st.sampled_from(REFS)
seldom = st.sampled_from([False, False, False, True])


class Locking(RuleBasedStateMachine):
    """Several processes, each with a lease that lives or is over, and two locks in one log."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.log = MemoryLog()
        self.lives: dict[str, int] = dict.fromkeys(
            PROCESSES, 0
        )  # each process's newest identity; older leases are over
        self.views: dict[tuple[str, LockRef], View[Lock]] = {}
        self.sent: list[Entry] = []
        #: The model: who is inside, by the lock; a holder that died stays until somebody takes over.
        self.inside: dict[LockRef, tuple[str, int]] = {}
        self.model: dict[LockRef, View[Lock]] = dict.fromkeys(REFS, View())
        self.moment = 0

    def run(self, action: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(LIMIT_S):
                return await action

        return self.runner.run(bounded())

    def teardown(self) -> None:
        try:
            self.check_the_whole_log()
        finally:
            self.runner.close()

    def identity(self, process: str) -> str:
        return f"{process}-{self.lives[process]}"

    def is_over(self, identity: str) -> bool:
        return identity not in map(self.identity, PROCESSES)

    def attempt(self, process: str, ref: LockRef, command: LockCommand, *, crash: bool) -> int | None:
        """Decide on the process's own view, however old; the model says whether that may be accepted."""
        view = self.views.get((process, ref), View())
        self.moment += 1
        stamp = Stamp(at=NOW + timedelta(seconds=self.moment), by=self.identity(process))
        try:
            event = decide(ref, view.state, command, stamp)
        except (LockHeldError, LockLostError):
            return None
        entry = LOCK.link(self.log.names, [event], view)[0]
        self.sent.append(entry)
        newest = self.model[ref].last_sequence == view.last_sequence
        try:
            sequence = self.run(self.log.append([entry]))
        except WrongSequenceError:
            assert not newest, "a process with the newest view was refused"
            return None
        assert newest, "a process with a stale view was let in"
        self.model[ref] = LOCK.advance(entry, event, sequence)
        if not crash:
            self.views[process, ref] = self.model[ref]
        return sequence

    @rule(process=processes, ref=locks)
    def look(self, process: str, ref: LockRef) -> None:
        found = self.run(self.log.last(LOCK.chain(self.log.names, ref.scope, ref.lock_id)))
        self.views[process, ref] = LOCK.view(found)

    @rule(process=processes, ref=locks, crash=seldom)
    def acquire(self, process: str, ref: LockRef, *, crash: bool) -> None:
        """Take what is free, and take over only what the holder's lease no longer keeps."""
        lock = self.views.get((process, ref), View[Lock]()).state
        lost = lock.fencing_number if lock is not None and lock.is_held and self.is_over(lock.holder) else 0
        holder = self.identity(process)
        sequence = self.attempt(process, ref, Acquire(holder=holder, lease_s=1.0, lost=lost), crash=crash)
        if sequence is None:
            return
        before = self.inside.get(ref)
        assert before is None or self.is_over(before[0]), f"{holder} got in beside {before}"
        assert before is None or sequence > before[1], "fencing numbers grow"
        self.inside[ref] = (holder, sequence)
        if crash:
            self.lives[process] += 1

    @rule(process=processes, ref=locks, crash=seldom)
    def release(self, process: str, ref: LockRef, *, crash: bool) -> None:
        view = self.views.get((process, ref), View())
        if view.state is None:
            return
        number = view.state.fencing_number
        sequence = self.attempt(process, ref, Release(fencing_number=number), crash=crash)
        if sequence is not None:
            assert self.inside.pop(ref)[1] == number, "only the newest acquisition can be given back"

    @rule(process=processes)
    def lose_the_lease(self, process: str) -> None:
        """Freeze beyond the lease: the process goes on under another identity, with all its old views."""
        self.lives[process] += 1

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An append comes a second time, as after a lost answer; its condition keeps it out."""
        entry = data.draw(st.sampled_from(self.sent))
        with contextlib.suppress(WrongSequenceError):
            self.run(self.log.append([entry]))
            raise AssertionError("an append was let in twice")

    @invariant()
    def the_newest_event_is_the_state(self) -> None:
        for ref in REFS:
            assert (
                LOCK.view(self.run(self.log.last(LOCK.chain(self.log.names, ref.scope, ref.lock_id))))
                == self.model[ref]
            )
            lock, inside = self.model[ref].state, self.inside.get(ref)
            held = None if lock is None or not lock.is_held else (lock.holder, lock.fencing_number)
            assert held == inside

    def check_the_whole_log(self) -> None:
        messages = self.run(self.collect())
        assert [each.stream_sequence for each in messages] == list(range(1, len(messages) + 1))
        chains = Chains(LOCK, self.log.names, from_start=True, memory_bytes_max=None)
        assert [
            broken for each in messages for broken in chains.feed(each, bytes.fromhex(each.hash))[1]
        ] == []
        for ref in REFS:
            events = [
                (LOCK.decode(each), each.stream_sequence)
                for each in messages
                if each.subject.startswith(LOCK.chain(self.log.names, ref.scope, ref.lock_id)[:-1])
            ]
            numbers = [sequence for event, sequence in events if isinstance(event, Acquired)]
            assert numbers == sorted(set(numbers))
            if events:
                assert evolve(None, *events[-1]) == self.model[ref].state

    async def collect(self) -> list[Message]:
        return [message async for batch in self.log.read_messages() for message in batch]


TestLocking = Locking.TestCase
TestLocking.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_checker_sees_a_lock_that_was_taken_from_a_holder() -> None:
    """What the machine asserts about the whole log can fail."""
    log = MemoryLog()
    ref, stamp = REFS[0], Stamp(at=NOW, by="a")
    first = decide(ref, None, Acquire(holder="a", lease_s=1.0), stamp)
    second = decide(ref, None, Acquire(holder="b", lease_s=1.0), stamp)

    async def scenario() -> list[Message]:
        entry = LOCK.link(log.names, [first], LOCK.view(None))[0]
        view = LOCK.advance(entry, first, await log.append([entry]))
        await log.append([LOCK.link(log.names, [second], view)[0]])
        return [message async for batch in log.read_messages() for message in batch]

    chains = Chains(LOCK, log.names, from_start=True, memory_bytes_max=None)
    messages = asyncio.run(scenario())
    broken = [each for message in messages for each in chains.feed(message, bytes.fromhex(message.hash))[1]]
    assert [rule_name for rule_name, _ in broken] == ["transition"]
