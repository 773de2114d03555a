"""Which jobs an act is about: named by their ids, or chosen by conditions."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from jobledger.admin.errors import ChoiceError
from jobledger.admin.find import find_job
from jobledger.admin.rows import Rows, View
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobFilter, SaidFilter, Store, parse_search


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs somebody means; nothing is looked up yet."""

    ids: tuple[str, ...] = ()  #: ids or their prefixes
    queue: str | None = None
    task: str | None = None
    since: datetime | None = None
    older_than: timedelta | None = None
    said: SaidFilter = SaidFilter()  #: tenant and other fields that their enqueuers set
    search: str = ""  #: a search that they fit as well, as people type it
    everything: bool = False

    @property
    def names_nothing(self) -> bool:
        """Whether it has no ids, no queue and no condition."""
        return not (self.ids or self.queue or self._has_conditions)

    @property
    def names_twice(self) -> bool:
        """Whether it has both ids and conditions; a queue beside ids is no condition."""
        return bool(self.ids) and self._has_conditions

    @property
    def _has_conditions(self) -> bool:
        """Whether a field other than the ids and the queue is set."""
        chosen = msgspec.structs.asdict(self)
        return any(value for name, value in chosen.items() if name not in {"ids", "queue"})


class JobChoice(Choice, frozen=True, kw_only=True):
    """The jobs that somebody means; its times are compared with those at which they were enqueued."""

    states: tuple[str, ...] = ()  #: any of these; none: all states that the act is for

    def filter(self, now: datetime, states: tuple[str, ...]) -> JobFilter:
        """Return the condition for the projection; `states`: those that the act is for.

        Raises: ProjectionConfigError for a search that cannot be parsed, or that differs from another field.
        """
        given = JobFilter(
            states=self.states,
            queue=self.queue,
            task=self.task,
            since=time_text(self.since) if self.since is not None else None,
            until=time_text(now - self.older_than) if self.older_than is not None else None,
            said=self.said,
        )
        chosen = given.both(parse_search(self.search, now))
        return chosen if chosen.states else msgspec.structs.replace(chosen, states=states)


class ChosenJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job that an act is about."""

    ref: JobRef
    task: str
    about: str = ""  #: its state, or why it is a dead letter, in a few words


def check_choice(choice: Choice, what: str) -> None:
    """Refuse a choice of nothing, or by ids and conditions at once, lest it acts on too many. Raises: ChoiceError."""
    if choice.names_nothing or choice.names_twice:
        raise ChoiceError(f"choose {what} by their ids or by conditions, and not by both")


async def find_jobs(
    rows: Rows, choice: JobChoice, states: tuple[str, ...], limit: int | None = None
) -> list[ChosenJob]:
    """Return the jobs that a choice names, the oldest first; ids in the order in which they were given.

    `states`: those that the act is for, used if the choice names none. `limit`: at most this many of those that
    conditions choose.

    Raises: ChoiceError, JobNotFoundError, AmbiguousIdError for an id; ProjectionError, UnreachableError.
    """
    check_choice(choice, "jobs")
    if choice.ids:
        return await find_by_ids(rows, choice)
    await rows.catch_up()
    condition = choice.filter(rows.ledger.clock.now(), states)
    with Store.open(await rows.path()) as store:
        found = store.chosen_jobs(condition, limit)
    return [
        ChosenJob(
            ref=JobRef(queue=row.queue, job_id=row.job_id), task=row.task, about=row.status.replace("_", " ")
        )
        for row in found
    ]


async def find_by_ids(rows: Rows, choice: Choice) -> list[ChosenJob]:
    """Return the jobs that a choice names by their ids. Raises: JobNotFoundError, AmbiguousIdError."""
    return [await _by_id(rows, job_id, choice.queue) for job_id in choice.ids]


async def _by_id(rows: Rows, job_id: str, queue: str | None) -> ChosenJob:
    handle = await find_job(rows, job_id, queue)
    job = await handle.snapshot()
    state = job.state.value.replace("_", " ")
    about = f"{job.error.type}: {job.error.message}" if job.error is not None else state
    return ChosenJob(ref=handle.ref, task=job.task, about=about)


def chosen_until(view: View, condition: JobFilter, until: int, *, limit: int) -> list[ChosenJob]:
    """Return the jobs that fit and did not change after the stream sequence `until`, the oldest first.

    Raises: ProjectionError.
    """
    where, values = view.store.resolved(condition).where()
    sql = (
        f"SELECT queue, id, task, status FROM jobs WHERE {where} AND last_sequence <= ? "  # noqa: S608 - our own words
        "ORDER BY created_at, rowid LIMIT ?"
    )
    return [
        ChosenJob(ref=JobRef(queue=queue, job_id=job_id), task=task, about=status.replace("_", " "))
        for queue, job_id, task, status in view.store.select(sql, (*values, until, limit))
    ]
