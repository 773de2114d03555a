"""The checker fed from a log: what cannot be read is a violation, and it goes on behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.stories import (
    Story,
    check,
    entry_of,
    found,
    rich,
    stored_in,
)

from jobledger.audit.verify import verify
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError, LedgerError, SequenceGapError
from jobledger.ledger.model.events import Cancelled
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.memory import MemoryLog


def test_a_log_is_verified_in_the_order_of_its_stream() -> None:
    async def scenario() -> None:
        story = rich()
        log = await stored_in(story, MemoryLog())
        seen: list[tuple[int, int]] = []
        report = await verify(log, on_progress=lambda done, last: seen.append((done, last)))
        assert report.sound
        assert report.digest == check(story.messages).digest
        assert seen[-1] == (len(story.messages), len(story.messages))
        part = await verify(log, from_sequence=5, to_sequence=20)
        assert (part.sound, part.events, part.head_sequence) == (True, 16, 20)

    asyncio.run(scenario())


def test_what_cannot_be_read_is_a_violation_and_the_check_goes_on_behind_it() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        story = Story()
        for job_id in ("a", "b"):
            story.enqueue(job_id)
            story.run(job_id)
        await stored_in(story, log)
        log._kept[1] = log._kept[1]._replace(data=b"{}")
        await log.append(
            [
                entry_of(
                    log,
                    "ledger.job.email.new.escalated",
                    b'{"type":"escalated","v":1,"at":"2026-01-02T00:00:00Z","by":"w","queue":"email","job":"new"}',
                )
            ]
        )
        story.plant("b", Cancelled)
        last = story.messages[-1]
        await log.append([entry_of(log, last.subject, last.data)])
        report = await verify(log)
        assert found(report) == [
            (2, "email/a", "readable"),
            (3, "email/a", "chain"),
            (3, "email/a", "transition"),
            (7, "", "readable"),
            (8, "email/b", "transition"),
        ]
        assert (report.events, report.head_sequence) == (7, 8)

    asyncio.run(scenario())


def test_verify_gives_up_on_what_is_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("jobledger.audit.verify.verification.UNREADABLE_MAX", 3)
        log = MemoryLog()
        for _ in range(5):
            data = b'{"type":"escalated","v":1,"at":"2026-01-02T00:00:00Z","by":"w"}'
            await log.append([entry_of(log, "ledger.plan.weekly.escalated", data)])
        report = await verify(log)
        assert found(report) == [
            (1, "", "readable"),
            (2, "", "readable"),
            (3, "", "readable"),
            (4, "", "sequence"),
        ]
        assert report.violations[-1].sentence.startswith("stream sequence 4 to 5 could not be read")

    asyncio.run(scenario())


class HoledLog(MemoryLog):
    """A log that lost a stretch, as a reader of a dense stream learns of it; the end can be lost as well."""

    def __init__(self, lost: range) -> None:
        super().__init__()
        self.lost = lost

    async def read_messages(
        self, *, from_sequence: int = 1, **options: Any
    ) -> AsyncGenerator[list[Message], None]:
        async for batch in super().read_messages(from_sequence=from_sequence, **options):
            before = [message for message in batch if message.stream_sequence < self.lost.start]
            if before:
                yield before
            if self.lost.stop > len(self._kept):
                return
            if from_sequence < self.lost.stop:
                raise SequenceGapError("lost", stream_sequence=self.lost.start, next_sequence=self.lost.stop)
            yield batch


def test_a_hole_in_the_log_is_named_and_the_check_goes_on_behind_it() -> None:
    async def scenario() -> None:
        story = rich()
        log = HoledLog(range(5, 8))
        await stored_in(story, log)
        report = await verify(log)
        assert found(report)[0] == (5, "", "sequence")
        assert report.broken["sequence"] == 1
        assert (report.events, report.head_sequence) == (len(story.messages) - 3, len(story.messages))

    asyncio.run(scenario())


def test_an_end_that_cannot_be_read_is_missing() -> None:
    async def scenario() -> None:
        story = rich()
        last = len(story.messages)
        log = HoledLog(range(last - 1, last + 1))
        await stored_in(story, log)
        report = await verify(log)
        assert found(report) == [(last - 1, "", "sequence")]
        assert f"{last - 1} to {last} could not be read" in report.violations[0].sentence

    asyncio.run(scenario())


def test_a_log_that_ends_too_early_was_rewound() -> None:
    async def scenario() -> None:
        log = await stored_in(rich(), MemoryLog())
        assert found(await verify(log, from_sequence=1_000)) == [(1_000, "", "sequence")]
        assert (await verify(log, to_sequence=1_000)).broken == {"sequence": 1}
        assert (await verify(log, from_sequence=len(log._kept) + 1)).sound
        with pytest.raises(InvalidInputError, match="before from_sequence"):
            await verify(log, from_sequence=5, to_sequence=3)

    asyncio.run(scenario())


class PurgedLog(HoledLog):
    """A log whose beginning goes into an archive while it is read."""

    async def head(self) -> Head:
        found = await super().head()
        before, self.first = self.first, self.lost.stop
        return Head(first_sequence=before, last_sequence=found.last_sequence, stored_bytes=0)

    first = 1


def test_a_beginning_that_is_archived_during_the_check_is_no_violation() -> None:
    async def scenario() -> None:
        log = PurgedLog(range(3, 8))
        await stored_in(rich(), log)
        with pytest.raises(LedgerError, match="archived while it was checked: check it again"):
            await verify(log)

    asyncio.run(scenario())
