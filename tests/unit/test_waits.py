"""Waits in memory: who is woken, and when."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.support.runs import CLAIM, LATER, NEW, NOW, Story, start

from jobledger.ledger.runs.waits import Waits

pytestmark = pytest.mark.anyio


class Journal:
    """What waits ask a journal for; the test sets the time."""

    may_linger = True

    def __init__(self, story: Story) -> None:
        self.job = story.run
        self.at = NOW
        self.is_asked = asyncio.Event()
        self._news = asyncio.Event()

    def now(self) -> Any:
        return self.at

    async def news(self, limit_s: float, *, look: bool) -> None:
        self.is_asked.set()
        await self._news.wait()
        self._news.clear()

    def poke(self) -> None:
        self._news.set()


async def test_a_branch_that_is_cancelled_in_the_moment_in_which_its_wait_ends_disturbs_no_other() -> None:
    until = {"a": LATER, "b": LATER + timedelta(hours=1)}
    story = Story(NEW, CLAIM, *(start(key, kind="sleep", until=moment) for key, moment in until.items()))
    journal = Journal(story)
    waits = Waits(cast("Any", journal), lambda: 0)
    waits.begin(2)  # one of the three branches does not wait
    first, second = [asyncio.create_task(waits.until_over(key)) for key in until]
    await journal.is_asked.wait()
    journal.at = until["a"]
    journal.poke()  # the keeper of the waits runs before the branch hears that it is cancelled
    first.cancel()
    await asyncio.wait([first])
    journal.at = until["b"]
    journal.poke()
    assert (await second).key == "b"
    assert first.cancelled()
    await waits.close()
