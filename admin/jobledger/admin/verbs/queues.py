"""Queue verbs: pause a queue and resume it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

from jobledger.admin.objects.fleet import QueuePause, queue_pause
from jobledger.admin.verbs.kit import Place, Reason, Verb, option, verb
from jobledger.ledger.model.queue_pause import pause_words

Queue = Annotated[str, option("The queue.", "QUEUE")]
_FULL = ("LEDGER_FULL", "LEDGER_BUSY")


@verb(
    "queues pause",
    "POST /v1/queues/{queue}/pause",
    permission="manage",
    about="queue",
    summary="Pause a queue",
    problems=_FULL,
    form="/queues/{queue}/pause",
    then="/queues",
)
class PauseQueue(Verb[QueuePause], frozen=True, kw_only=True):
    """Give no worker a job of a queue any more; jobs still come in, and those that run continue."""

    queue: Queue
    until: Annotated[
        datetime | None, option("End the pause at this time, or after a span such as 30m.", "TIME")
    ] = None
    reason: Reason = ""
    interrupt: Annotated[bool, option("Give running attempts back, too; they do not count.")] = False

    async def do(self, place: Place) -> QueuePause:
        """Pause it. Raises: as `Ledger.pause_queue`."""
        state = await place.ledger.pause_queue(
            self.queue, until=self.until, reason=self.reason, interrupt=self.interrupt, by=place.by
        )
        return queue_pause(self.queue, state)

    def say(self, found: QueuePause) -> Iterator[str]:
        """Say that it is paused, and what ends that."""
        if (pause := found.pause) is not None:
            yield f"queue {found.queue} is {pause_words(pause.by, pause.since, pause.until, pause.reason)}"
        yield f"`jobledger queues resume {found.queue}` ends that"

    async def notes(self, place: Place) -> Sequence[str]:
        """Say that nobody serves the queue, whose name may be wrong."""
        if any(self.queue in info.queues for info in await place.ledger.leases.all() if not info.stopped):
            return ()
        return (
            f"no worker serves queue {self.queue} at this moment; `jobledger workers list` shows those that are served",
        )


@verb(
    "queues resume",
    "POST /v1/queues/{queue}/resume",
    permission="manage",
    about="queue",
    summary="Resume a queue",
    problems=("REFUSED", *_FULL),
    form="/queues/{queue}/resume",
    then="/queues",
)
class ResumeQueue(Verb[QueuePause], frozen=True, kw_only=True):
    """Give workers the jobs of a paused queue again."""

    queue: Queue
    reason: Reason = ""

    async def do(self, place: Place) -> QueuePause:
        """Resume it. Raises: as `Ledger.resume_queue`."""
        return queue_pause(
            self.queue, await place.ledger.resume_queue(self.queue, reason=self.reason, by=place.by)
        )

    def say(self, found: QueuePause) -> Iterator[str]:
        """Say that it is resumed."""
        yield f"queue {found.queue} is resumed"
