"""Dead letters: which ones somebody means, how they look in a list, and one of them whole."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from jobledger.admin.choice import Choice, ChosenJob, check_choice, find_by_ids
from jobledger.admin.errors import NotADeadLetterError
from jobledger.admin.find import find_job
from jobledger.admin.rows import Rows
from jobledger.admin.views import JobDetails, job_details
from jobledger.audit.verify.links import ChainCheck, check_history
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.fingerprint import job_fingerprint
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import time_text
from jobledger.projections import DeadLetterFilter, DeadLetterRow, Store, parse_search


class DeadLetterChoice(Choice, frozen=True, kw_only=True):
    """The dead letters that somebody means; its times are compared with those of their deaths."""

    reason: str | None = None
    fingerprint: str | None = None  #: a whole one or a prefix

    def filter(self, now: datetime) -> DeadLetterFilter:
        """Return the condition for the projection. Raises: ProjectionConfigError."""
        chosen = DeadLetterFilter(
            queue=self.queue,
            task=self.task,
            reason=self.reason,
            fingerprint=self.fingerprint,
            since=time_text(self.since) if self.since is not None else None,
            until=time_text(now - self.older_than) if self.older_than is not None else None,
            said=self.said,
        )
        return chosen.sought(parse_search(self.search, now)) if self.search else chosen


class WholeDeadLetter(NamedTuple):
    """One dead letter whole."""

    job: Job
    details: JobDetails
    history: list[StoredEvent]
    fingerprint: str
    chain: ChainCheck  #: whether the hash links of the history hold


async def show_dead_letter(rows: Rows, job_id: str, queue: str | None = None) -> WholeDeadLetter:
    """Return one dead letter from its chain.

    Raises: NotADeadLetterError, and as `find_job`.
    """
    history = await (await find_job(rows, job_id, queue)).history()
    job = fold(history).job
    assert job is not None, "a history is not empty"
    if job.state is not JobState.DEAD_LETTERED:
        raise NotADeadLetterError(
            f"job {job.id} is {job.state.value.replace('_', ' ')} and not a dead letter: "
            f"see `jobledger jobs show {job.id}`"
        )
    chain = await check_history(rows.ledger.log, history)
    return WholeDeadLetter(
        job, await job_details(rows.ledger, job, history), history, job_fingerprint(job), chain
    )


async def find_dead_letters(
    rows: Rows, choice: DeadLetterChoice, limit: int | None = None
) -> list[ChosenJob]:
    """Return the dead letters that a choice names, the oldest first; ids in the order in which they were given.

    `limit`: at most this many of those that conditions choose.

    Raises: ChoiceError for a choice of nothing, or by both; JobNotFoundError, AmbiguousIdError for an id.
    """
    check_choice(choice, "dead letters")
    if choice.ids:
        return await find_by_ids(rows, choice)
    await rows.catch_up()
    condition = choice.filter(rows.ledger.clock.now())
    with Store.open(await rows.path()) as store:
        count = limit or max(1, store.dead_letter_count(condition))
        found = store.dead_letters(count, order="oldest", chosen=condition)
    return [
        ChosenJob(ref=JobRef(queue=row.queue, job_id=row.job_id), task=row.task, about=cause(row))
        for row in found
    ]


def cause(row: DeadLetterRow) -> str:
    """Return in a few words why a job is a dead letter."""
    said = f"{row.error_type}: {row.error}" if row.error_type else row.error or ""
    return said if row.reason == "exhausted" else f"{row.reason}: {row.error or said}"
