"""A ledger counted by nats-py alone: nothing of what it checks has a part in the checking."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import datetime
from itertools import pairwise
from typing import Final

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

_FINAL: Final = frozenset({"completed", "cancelled", "dead_lettered"})
_FIRST: Final = frozenset({"queued", "scheduled", "held"})
_RECEIPT: Final = "fenced"  #: that an outcome came too late; it changes nothing
_WAIT_S: Final = 20.0
_JOB_WORDS: Final = 5  #: ledger.job.<queue>.<job>.<event>, and what some events add


class ByHand:
    """The stream LEDGER of a cluster, read on from where it was read before."""

    def __init__(self, url: str) -> None:
        self._servers = url.split(",")
        self._last = 0
        self.wrong: list[str] = []  #: a sentence each
        self.events: dict[str, list[str]] = defaultdict(list)  #: the events of each job, by its id

    @property
    def count(self) -> int:
        return self._last

    async def read_on(self) -> None:
        """Read what was appended since, to the end that the stream has now."""
        client = await nats.connect(self._servers)
        try:
            stream = client.jetstream(timeout=_WAIT_S)
            end = (await stream.stream_info("LEDGER")).state.last_seq
            if end <= self._last:
                return
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._last + 1,
                ack_policy=AckPolicy.NONE,
            )
            sub = await stream.subscribe("ledger.>", stream="LEDGER", ordered_consumer=True, config=config)
            while self._last < end:
                message = await sub.next_msg(timeout=_WAIT_S)
                self._take(message.subject, message.metadata.sequence.stream)
        finally:
            await client.close()

    def _take(self, subject: str, sequence: int) -> None:
        if sequence != self._last + 1:
            self.wrong.append(f"event {sequence} comes after {self._last}")
        self._last = sequence
        words = subject.split(".")
        if words[1] != "job" or len(words) < _JOB_WORDS:
            return
        job, event = words[3], words[4]
        before = self.events[job]
        if not before and event not in _FIRST:
            self.wrong.append(f"{job} begins with {event}")
        if event != _RECEIPT and any(each in _FINAL for each in before):
            self.wrong.append(f"{job} has {event} after it ended")
        if event == "completed" and "started" not in before:
            self.wrong.append(f"{job} completed and never started")
        before.append(event)

    def lost(self, acknowledged: Collection[str]) -> list[str]:
        """Return the acknowledged jobs that are not there."""
        return sorted(set(acknowledged) - self.events.keys())

    def open(self) -> list[str]:
        """Return the jobs that have not ended."""
        return sorted(job for job, events in self.events.items() if not _FINAL.intersection(events))

    def ends(self) -> Counter[tuple[str, str]]:
        """Return how many jobs of each kind (the first word of their ids) ended how."""
        return Counter(
            (job.split("-", 1)[0], next((each for each in events if each in _FINAL), "open"))
            for job, events in self.events.items()
        )

    def missed_ticks(self, schedule: str, each_s: float) -> list[str]:
        """Return the ticks of a schedule after which the next one is not there; its jobs are `<schedule>-<tick>`."""
        begin = f"{schedule}-"
        jobs = sorted(each for each in self.events if each.startswith(begin) and each[len(begin)].isdigit())
        times = [datetime.strptime(each[len(begin) :][:15], "%Y%m%dT%H%M%S") for each in jobs]  # noqa: DTZ007 - all are UTC
        return [
            jobs[number]
            for number, (one, other) in enumerate(pairwise(times))
            if (other - one).total_seconds() != each_s
        ]


def read_on(ledger: ByHand) -> None:
    """Read on in an event loop of its own, for a thread."""
    asyncio.run(ledger.read_on())
