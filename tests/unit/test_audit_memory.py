"""The checker's memory has a bound, and what it puts aside on the disk changes nothing that it finds."""

from __future__ import annotations

import contextlib
import itertools
import random
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stories import BOOM, NAMES, STEPS, Story, check, rich
from tests.support.tables import each_row

from jobledger.audit.errors import ScratchSpaceError
from jobledger.audit.verify import Checker, CheckOptions, Expectation, Report
from jobledger.audit.verify import store as audit_store
from jobledger.audit.verify.store import Form, RecordStore
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Fail, Fence
from jobledger.ledger.model.errors import CorruptLedgerError, InvalidInputError, LedgerError
from jobledger.ledger.model.events import Cancelled, Completed, Started

_TEXTS: Form[str] = Form(
    weigh=len,
    is_live=lambda record: record.endswith("!"),
    encode=str.encode,
    decode=lambda is_live, data: data.decode(),
)


# Random histories with damage in them: whatever is found with all the memory is found with none.


def _history(chance: random.Random, jobs: int, steps: int) -> Story:
    story = Story()
    names = [f"j{number}" for number in range(jobs)]
    for name in names:
        delay = {"run_at": story.now + timedelta(minutes=1)} if chance.random() < 0.2 else {}
        story.enqueue(name, max_attempts=2, **delay)
    story.acquire("w1")
    for _ in range(steps):
        with contextlib.suppress(LedgerError):
            chance.choice(STEPS)(story, chance.choice(names))
        if chance.random() < 0.05:
            _plant(story, chance, chance.choice(names))
    return story


def _plant(story: Story, chance: random.Random, name: str) -> None:
    job = story.chains[story.ref(name)].job
    number = max(1, len(job.attempts)) if job is not None else 1
    if (at := chance.randrange(3)) == 0:
        story.plant(name, Completed, attempt=number)
    elif at == 1:
        story.plant(name, Started, attempt=number, worker="w9", lease_s=15)
    else:
        story.plant(name, Cancelled)


def _damaged(messages: Sequence[Message], chance: random.Random) -> list[Message]:
    """Drop some, flip a bit in some, let some change places."""
    found: list[Message] = []
    for message in messages:
        what = chance.random()
        if what < 0.01:
            continue
        if what < 0.02:
            data = bytearray(message.data)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            with contextlib.suppress(CorruptLedgerError):
                found.append(
                    read_message(message.subject, bytes(data), message.stream_sequence, message.stored_at)
                )
            continue
        found.append(message)
        if what > 0.99 and len(found) > 1:
            found[-1], found[-2] = found[-2], found[-1]
    return found


def _comparable(report: Report) -> Report:
    violations = sorted(
        report.violations, key=lambda each: (each.stream_sequence, each.job, each.rule, each.sentence)
    )
    return msgspec.structs.replace(report, violations=tuple(violations), elapsed_s=0.0)


@each_row("seed", range(8))
@each_row("memory_bytes_max", [1, 4_000, 20_000])
def test_what_is_found_does_not_depend_on_the_memory(seed: int, memory_bytes_max: int) -> None:
    chance = random.Random(seed)
    story = _history(chance, jobs=40, steps=500)
    messages = story.messages if seed % 4 == 0 else _damaged(story.messages, chance)
    names = [("email", f"j{number}") for number in range(45)]
    expected = Expectation(enqueued=names, all_final=True, now=story.now + timedelta(days=1))
    unbounded = check(messages, expected, options=CheckOptions(memory_bytes_max=None, violations_max=10_000))
    bounded = check(
        messages, expected, options=CheckOptions(memory_bytes_max=memory_bytes_max, violations_max=10_000)
    )
    assert len(unbounded.violations) > 20
    assert {"transition", "enqueue", "final"} <= set(unbounded.broken)
    assert _comparable(bounded) == _comparable(unbounded)


def test_a_sound_ledger_is_sound_without_any_memory() -> None:
    messages = rich().messages
    assert _comparable(check(messages, options=CheckOptions(memory_bytes_max=1))) == _comparable(
        check(messages)
    )


def test_a_closed_job_that_was_put_aside_is_still_known() -> None:
    """Its attempts, its epoch and its hash: a late `fenced` is as it should be, a second outcome is not."""
    story = Story()
    story.enqueue("j")
    held = story.claim("j")
    story.do("j", Fail(epoch=held, error=BOOM))
    story.run("j")
    for number in range(100):
        story.enqueue(f"k{number}")
        story.run(f"k{number}")
    story.do("j", Fence(epoch=held, attempt=1, worker="w1", outcome="completed"))
    options = CheckOptions(memory_bytes_max=2_000)
    assert check(story.messages, options=options).sound
    sequence = story.plant("j", Completed, attempt=2)
    (found,) = check(story.messages, options=options).violations
    assert (found.stream_sequence, found.rule) == (sequence, "outcome")


def test_memory_does_not_grow_with_the_ledger() -> None:
    def kept(jobs: int) -> int:
        story = Story()
        for number in range(jobs):
            story.enqueue(f"job-{number:06}", max_attempts=1)
            if number % 2:
                story.run(f"job-{number:06}")
        messages, story = story.messages, Story()
        checker = Checker(NAMES, options=CheckOptions(memory_bytes_max=100_000))
        tracemalloc.start()
        for message in messages:
            checker.feed(message)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert checker._jobs.is_spilled
        assert checker.finish().jobs == jobs
        return peak

    small, large = kept(400), kept(1_200)
    assert large < 1.2 * small
    assert large < 250_000


# The parts.


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_store_is_a_dictionary_however_small_its_memory(
    steps: list[tuple[str, bool, int]],
) -> None:
    store, model = RecordStore(_TEXTS, 1), dict[str, str]()
    try:
        for name, is_live, value in steps:
            record = f"{value}{'!' if is_live else ''}"
            assert store.get(name) == model.get(name)
            store.put(name, record)
            model[name] = record
        assert dict(store.all()) == model
        assert len(list(store.all())) == len(store) == len(model)
        live = {name: record for name, record in model.items() if record.endswith("!")}
        assert dict(store.all(live_only=True)) == live
    finally:
        store.close()


def test_what_is_used_stays_in_memory() -> None:
    """Of a thousand records in room for a hundred, the one that is asked for all the time is never read back."""
    read: list[bytes] = []

    def decode(_is_live: bool, data: bytes) -> str:
        read.append(data)
        return data.decode()

    store = RecordStore(msgspec.structs.replace(_TEXTS, decode=decode), 100 * 140)
    store.put("used", "used")
    for number in range(1_000):
        assert store.get("used") == "used"
        assert store.get(f"n{number}") is None
        store.put(f"n{number}", "other")
    assert (store.is_spilled, read) == (True, [])
    assert store.get("n0") == "other"
    assert read == [b"other"]
    store.close()


def test_a_record_larger_than_all_the_memory_stays_while_only_it_is_used() -> None:
    """As of a run of many steps: else each of its events would write it to the disk and read it back."""
    written: list[str] = []

    def encode(record: str) -> bytes:
        written.append(record)
        return record.encode()

    store = RecordStore(msgspec.structs.replace(_TEXTS, encode=encode), 1_000)
    for name in ("small", "large"):
        store.put(name, name * 1_000)
    for _ in range(100):
        assert store.get("large") == "large" * 1_000
    assert written == ["small" * 1_000]
    store.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists a process's open files")
def test_what_is_put_aside_is_a_file_without_a_name() -> None:
    """It goes with the process, also when that is killed."""
    before = _deleted_files()
    store = RecordStore(_TEXTS, 100_000)
    for number in range(5_000):
        assert store.get(f"name-{number:05}") is None
        store.put(f"name-{number:05}", "x" * 200)
    assert store.is_spilled
    assert _deleted_files() == before + 1
    store.close()
    assert _deleted_files() == before


def _deleted_files() -> int:
    targets = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(target.startswith("etilqs_") and target.endswith(" (deleted)") for target in targets)


def test_a_full_disk_is_one_clear_sentence_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PAGES_MAX", 4)
    story = Story()
    for number in range(200):
        story.enqueue(f"j{number}")
    checker = Checker(NAMES, options=CheckOptions(memory_bytes_max=1))
    with pytest.raises(ScratchSpaceError, match="database or disk is full; make room there, set TMPDIR"):
        _feed(checker, story.messages)
    checker.close()
    assert not checker._jobs.is_spilled


def _feed(checker: Checker, messages: Sequence[Message]) -> None:
    for message in messages:
        checker.feed(message)


@pytest.mark.parametrize("change", [{"memory_bytes_max": 0}, {"overdue_grace_s": -1}, {"violations_max": -1}])
def test_an_option_that_cannot_work_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(change))):
        CheckOptions(**change)


def test_the_store_counts_what_its_records_weigh() -> None:
    """Within a factor of two of what they take: that is what the bound of the memory rests on."""
    story = Story()
    for number in range(1_000):
        story.enqueue(f"0194{number:08x}-7abc-8def-0123456789ab", max_attempts=1)
        if number % 2:
            story.run(f"0194{number:08x}-7abc-8def-0123456789ab")
    messages = [(each.subject, each.data, each.stream_sequence, each.stored_at) for each in story.messages]
    del story
    checker = Checker(NAMES)
    tracemalloc.start()
    for message in itertools.starmap(read_message, messages):
        assert isinstance(message, StoredEvent)
        checker.feed(message)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 < checker._jobs.weight_bytes / kept < 2
