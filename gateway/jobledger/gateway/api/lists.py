"""Lists: jobs by filter, page by page; dead letters, one by one and by cause; acts of people."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final

import anyio.to_thread

from jobledger.admin.lists import acts as lists_of_acts
from jobledger.admin.lists import dead_letters as lists_of_letters
from jobledger.admin.lists.acts import ActPage
from jobledger.admin.lists.dead_letters import DeadLetterGroupPage, DeadLetterPage, group_dead_letters
from jobledger.admin.lists.jobs import CountedJobs, JobPage, count_jobs, list_jobs
from jobledger.admin.objects.jobs import DeadLetterShown, dead_letter_shown
from jobledger.admin.rows import View
from jobledger.admin.views import job_details
from jobledger.audit.verify.links import check_history
from jobledger.gateway.api.one_job import PROBLEMS, read_job
from jobledger.gateway.api.pagination import READ, looking, next_page
from jobledger.gateway.api.parameters import Limit, Look, Past, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.events import DeadReason
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import time_text
from jobledger.projections import (
    ActFilter,
    DeadLetterFilter,
    JobFilter,
    Order,
    SaidFilter,
    parse_search,
)
from jobledger.projections.search import PAIRS_MAX
from jobledger.projections.tables.acts import ActName


class EnqueuerFilter(Look, frozen=True, kw_only=True):
    """A filter of jobs by the words of their enqueuers."""

    tenant: str | None = None
    correlation: str | None = None
    created_by: str | None = None  #: the principal who enqueued the job
    metadata: tuple[str, ...] = ()  #: each as `key=value`; may be repeated
    limited_by: str | None = None  #: `name:key`, or a name alone for any key
    owner: str | None = None  #: owner of the data in the job, as `person:17`

    def said(self) -> SaidFilter:
        """Return the condition. Raises: ProblemError, InvalidInputError, InvalidTokenError."""
        said: dict[str, Any] = {name: getattr(self, name) for name in SaidFilter.__struct_fields__}
        said["metadata"] = _pairs("metadata", self.metadata)
        return SaidFilter(**said)


class Which(EnqueuerFilter, frozen=True, kw_only=True):
    """A filter of jobs."""

    state: tuple[JobState, ...] = ()  #: one of these states; may be repeated
    queue: str | None = None
    task: str | None = None
    since: datetime | None = None  #: enqueued at this time or later
    until: datetime | None = None  #: enqueued before this
    trace_id: str | None = None  #: 32 hexadecimal digits
    batch: str | None = None
    id: str | None = None  #: beginning of the job's id
    error_type: str | None = None  #: error type of the newest failure
    fingerprint: str | None = None  #: whole or a prefix; only dead letters have one
    input: tuple[str, ...] = ()  #: `field=value` or `/pointer=value`; may be repeated; needs `payloads`
    q: str | None = (
        None  #: a search such as `tenant:acme state:dead since:2h` (docs/search.md); the other filters count as well
    )
    members: bool = False  #: also the children of runs; of a run that is named they always count

    async def filter(self, asked: ApiRequest, view: View) -> JobFilter:
        """Return the condition, limited to jobs that the asker may see.

        Raises: AccessDeniedError, ProblemError, ProjectionConfigError.
        """
        chosen = self._parameters(asked)
        if self.q is not None:
            chosen = chosen.both(parse_search(self.q, view.now))
        if chosen.words is not None:
            chosen = await anyio.to_thread.run_sync(view.store.resolved, chosen)
        if chosen.reads_payloads:
            asked.principal.require("payloads")
        return chosen

    def _parameters(self, asked: ApiRequest) -> JobFilter:
        """Return the condition of each parameter but `q`."""
        return JobFilter(
            states=tuple(state.value for state in self.state),
            queue=None if self.queue is None else check_token("queue", self.queue),
            task=self.task,
            since=_text(aware("since", self.since)),
            until=_text(aware("until", self.until)),
            said=self.said(),
            trace_id=self.trace_id,
            batch=self.batch,
            id_prefix=self.id,
            error_type=self.error_type,
            fingerprints=() if self.fingerprint is None else (self.fingerprint,),
            input=_pairs("input", self.input),
            members=self.members,
            visible_queues=asked.principal.scope.queues,
            visible_tasks=asked.principal.scope.tasks,
        )


class JobsQuery(Which, frozen=True, kw_only=True):
    """A filter of jobs, and a page of them."""

    order: Order = "newest"
    limit: Limit = 50
    after: str | None = None  #: `next` of the previous page


class DeadLettersQuery(EnqueuerFilter, frozen=True, kw_only=True):
    """A filter of dead letters; its times are the times of death."""

    queue: str | None = None
    task: str | None = None
    reason: DeadReason | None = None
    fingerprint: str | None = None  #: whole or a prefix
    since: datetime | None = None
    until: datetime | None = None
    q: str | None = None  #: a search as in `GET /v1/jobs`; its times are times of death, too
    limit: Limit = 50
    after: str | None = None  #: `next` of the previous page

    def filter(self, asked: ApiRequest, view: View) -> DeadLetterFilter:
        """Return the condition, limited to jobs that the asker may see.

        Raises: AccessDeniedError, ProblemError, ProjectionConfigError.
        """
        chosen = DeadLetterFilter(
            queue=None if self.queue is None else check_token("queue", self.queue),
            task=self.task,
            reason=self.reason,
            fingerprint=self.fingerprint,
            since=_text(aware("since", self.since)),
            until=_text(aware("until", self.until)),
            said=self.said(),
            visible_queues=asked.principal.scope.queues,
            visible_tasks=asked.principal.scope.tasks,
        )
        if self.q is not None:
            chosen = chosen.sought(parse_search(self.q, view.now))
        if chosen.reads_payloads:
            asked.principal.require("payloads")
        return chosen


class ActsQuery(Look, frozen=True, kw_only=True):
    """A filter of acts."""

    by: str | None = None  #: name of the actor
    act: ActName | None = None
    queue: str | None = None
    job: str | None = None  #: id of a job
    since: datetime | None = None
    limit: Limit = 50
    after: str | None = None  #: `next` of the previous page


def _pairs(name: str, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if len(given) > PAIRS_MAX:
        raise ProblemError(
            "BAD_REQUEST", f"{name} is given {len(given)} times: give it {PAIRS_MAX} times at most"
        )
    found = [each.partition("=") for each in given]
    if any(not sign or not key for key, sign, _ in found):
        raise ProblemError("BAD_REQUEST", f"{name} is given as key=value: write {name}=colour=red")
    return tuple((key, value) for key, _, value in found)


def _text(at: datetime | None) -> str | None:
    return None if at is None else time_text(at)


async def list_all_jobs(asked: ApiRequest, *, query: JobsQuery) -> Answer:
    """List jobs, a page at a time; pages neither miss nor repeat a job, even while jobs come and change."""
    async with looking(asked, query) as (view, _):
        chosen = await query.filter(asked, view)
        page = await list_jobs(view, chosen, cursor=query.after, limit=query.limit, order=query.order)
    return Answer(value=page, headers=next_page(asked, page.next))


async def count_all_jobs(asked: ApiRequest, *, query: Which) -> CountedJobs:
    """Count jobs by state; the filter's own states are ignored, so that each state is counted."""
    async with looking(asked, query) as (view, _):
        return await count_jobs(view, await query.filter(asked, view))


async def list_dead_letters(asked: ApiRequest, *, query: DeadLettersQuery) -> Answer:
    """List dead letters, the newest first."""
    async with looking(asked, query) as (view, _):
        chosen = query.filter(asked, view)
        page = await lists_of_letters.list_dead_letters(view, chosen, cursor=query.after, limit=query.limit)
    return Answer(value=page, headers=next_page(asked, page.next))


async def list_dead_letter_groups(asked: ApiRequest, *, query: DeadLettersQuery) -> Answer:
    """List dead letters by cause, the most frequent first."""
    async with looking(asked, query) as (view, _):
        chosen = query.filter(asked, view)
        page = await group_dead_letters(view, chosen, cursor=query.after, limit=query.limit)
    return Answer(value=page, headers=next_page(asked, page.next))


async def show_dead_letter(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Answer:  # noqa: A002
    """Show a dead letter whole, with the fingerprint of its cause."""
    held = await read_job(asked, queue, id, query)
    job, ledger = held.job, asked.gateway.ledger
    if job.state is not JobState.DEAD_LETTERED:
        raise ProblemError("ILLEGAL_TRANSITION", f"job {job.id} is {job.state.value} and not a dead letter")
    details = await job_details(ledger, job, held.history, hidden=hidden_from(asked.principal))
    check = await check_history(ledger.log, held.history)
    return Answer(value=dead_letter_shown(details, job, check), etag=str(job.last_sequence))


async def list_acts(asked: ApiRequest, *, query: ActsQuery) -> Answer:
    """List acts of people on jobs (cancel, retry, reschedule, requeue, discard) with actor and reason."""
    chosen = ActFilter(
        by=query.by,
        act=query.act,
        queue=query.queue,
        job=query.job,
        since=aware("since", query.since),
        visible_queues=asked.principal.queues,
        visible_tasks=asked.principal.tasks,
    )
    async with looking(asked, query) as (view, _):
        page = await lists_of_acts.list_acts(view, chosen, cursor=query.after, limit=query.limit)
    return Answer(value=page, headers=next_page(asked, page.next))


_list: Final = partial(endpoint_maker("jobs", permission="view", problems=READ), "GET")

_DEAD: Final = "/v1/dead-letters"
_PAGES: Final = {"problems": (*READ, "CURSOR_MISMATCH")}
_JOBS: Final = {"query": JobsQuery, **_PAGES}
_LETTERS: Final = {"query": DeadLettersQuery, "tag": "dead letters", **_PAGES}
_LETTER: Final = {
    "query": Past,
    "tag": "dead letters",
    "heeds": ("If-None-Match",),
    "problems": (*PROBLEMS, "ILLEGAL_TRANSITION"),
}

ENDPOINTS: Final = (
    _list("/v1/jobs", list_all_jobs, "List jobs", JobPage, **_JOBS),
    _list("/v1/jobs/counts", count_all_jobs, "Count jobs by state", CountedJobs, query=Which),
    _list(_DEAD, list_dead_letters, "List dead letters", DeadLetterPage, **_LETTERS),
    _list(
        f"{_DEAD}/groups",
        list_dead_letter_groups,
        "List dead letters by cause",
        DeadLetterGroupPage,
        **_LETTERS,
    ),
    _list(f"{_DEAD}/{{queue}}/{{id}}", show_dead_letter, "Show a dead letter", DeadLetterShown, **_LETTER),
    _list(
        "/v1/acts", list_acts, "List what people did to jobs", ActPage, query=ActsQuery, tag="acts", **_PAGES
    ),
)
