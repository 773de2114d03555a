"""One job: its attempts over time, every event with its hash, its values, what it waits for, what can be done to it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from markupsafe import Markup

from jobledger.admin.acts import why as why_of
from jobledger.admin.errors import JobNotHeldError
from jobledger.admin.find import find_history, newest_life
from jobledger.admin.past import AsOf, events_until
from jobledger.admin.views import Absent, JobDetails, job_details
from jobledger.audit.trail import Line, trail_of
from jobledger.audit.verify.links import ChainCheck
from jobledger.audit.why import Why
from jobledger.gateway.pages.charts.waterfall import waterfall
from jobledger.gateway.pages.page import Looked, Told, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.pages.spans import drawn
from jobledger.gateway.pages.views.archived import archived, where_is
from jobledger.gateway.pages.views.run import RunPart, run_part
from jobledger.gateway.pages.words import json_text, took
from jobledger.gateway.scoped import facts_for, names_cleared
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import JobNotFoundError, LedgerError
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.model.subjects import JobRef, check_token, is_own_queue
from jobledger.ledger.nats.attempt_logs import LogLine
from jobledger.ledger.signalling.giving import announced_workflow

Act = Literal["cancel", "retry", "reschedule", "requeue", "discard", "pause", "resume"]

EVENTS_SHOWN_MAX: Final = 300
LINES_SHOWN_MAX: Final = 300
_EDITED_MAX: Final = 100_000  #: characters of an input that a form holds


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event."""

    line: Line
    hash: str  #: sha256 of its stored bytes, hex
    fields: Any  #: as it is stored, without values
    after: bool  #: later than the moment shown


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    details: JobDetails
    job: Job
    why: Why
    hidden: bool  #: whether values are not shown to who looks
    editable: (
        str | None
    )  #: its input as text that a form can hold; None: hidden, gone, too long, or the ledger's own
    editable_hash: str  #: sha256 of that text: tells whether somebody changed it
    run: RunPart | None  #: None: it recorded no step
    chain: ChainCheck
    missing: str  #: where its first events are, "" where all are there
    hash: str  #: of the newest event
    waterfall: Markup
    summary: str
    events: list[EventLine]
    events_more: int
    stops: list[int]  #: stream sequences of all events
    kinds: list[str]  #: of the events, where there are few enough to see
    shown: int  #: how many events the moment has
    moment: datetime  #: of the newest of them
    acts: list[Act]
    logs: list[LogLine] = []  #: the newest of what its attempts logged; none of the past


async def job_page(looked: Looked, queue: str, id: str, *, query: When) -> JobPage | Told:  # noqa: A002 - as in the address
    """Return a job as it is, or as of a past moment; of one that was archived what the lists know."""
    gateway, past = looked.gateway, query.as_of()
    try:
        found = await find_history(gateway.rows, id, queue)
    except JobNotHeldError as error:
        return Told("archived.html", await archived(looked, queue, error))
    stored, _ = newest_life(found.history)
    first = stored[0].event
    looked.principal.require_about("view", first.queue, first.task, JobNotFoundError(id))
    history = names_cleared(looked.principal, stored)
    seen = history if past is None else await _until(looked, history, past)
    is_past = past is not None and len(seen) < len(history)
    job = fold(seen).job
    assert job is not None, "a history is not empty"
    asked = AsOf(stream_sequence=seen[-1].stream_sequence) if is_past else None
    narrowed = facts_for(looked.principal)
    explained = await why_of(gateway.rows, job.id, job.queue, past=asked, narrowed=narrowed)
    of_run = bool(job.steps or job.signals)
    workflow = await announced_workflow(gateway.ledger, job.task, job.order.version) if of_run else None
    async with gateway.projection.opened(None) as view:
        shell = await surround(looked, view, asked, fleet=False)
        run = run_part(job, seen, view, looked.principal, workflow)
    hidden = not looked.principal.may("payloads")
    cleared = hidden_from(looked.principal)
    details = await job_details(gateway.ledger, job, history, hidden=cleared)
    shown = _page(shell, job, explained.why, history, seen, found.chain, details, run, hidden=hidden)
    if not (hidden or is_past):
        shown = msgspec.structs.replace(shown, logs=await _logs(looked, job))
    return (
        shown
        if found.missing is None
        else msgspec.structs.replace(shown, missing=where_is(found.missing, job.id))
    )


async def newest_event(looked: Looked, queue: str, id: str) -> int:  # noqa: A002 - as in the address
    """Return the stream sequence of a job's newest event; 0 where the ledger has none under that very id.

    Raises: InvalidTokenError, UnreachableError.
    """
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", id))
    return await looked.gateway.ledger.log.newest_sequence(looked.gateway.ledger.names.chain(ref))


async def _logs(looked: Looked, job: Job) -> list[LogLine]:
    """Return what the page shows of a job's log; none where it cannot be read: the rest is shown all the same."""
    handle = looked.gateway.ledger.handle_of(JobRef(queue=job.queue, job_id=job.id))
    with contextlib.suppress(LedgerError):
        return (await handle.logs()).items[-LINES_SHOWN_MAX:]
    return []


async def _until(looked: Looked, history: list[StoredEvent], past: AsOf) -> list[StoredEvent]:
    ledger = looked.gateway.ledger
    return events_until(history, await past.moment(ledger.log, ledger.clock))


def _page(  # noqa: PLR0917 - everything that was read, once
    shell: Shell,
    job: Job,
    why: Why,
    history: list[StoredEvent],
    seen: list[StoredEvent],
    chain: ChainCheck,
    details: JobDetails,
    run: RunPart | None,
    *,
    hidden: bool,
) -> JobPage:
    trail = trail_of(history, now=shell.today)
    is_past = len(seen) < len(history)
    picture = drawn(
        history, trail.clocks.times, now=shell.today, shown=seen[-1].stream_sequence if is_past else None
    )
    text = None if hidden or is_own_queue(job.queue) else editable(details)
    last = seen[-1].stream_sequence
    told = zip(history, trail.lines, details.events, strict=True)
    lines = [_line(stored, line, fields, last) for stored, line, fields in told]
    return JobPage(
        shell=shell,
        details=details,
        job=job,
        why=why,
        hidden=hidden,
        editable=text,
        editable_hash="" if text is None else hashlib.sha256(text.encode()).hexdigest(),
        run=run,
        chain=chain,
        missing="",
        hash=hashlib.sha256(history[-1].data).hexdigest(),
        waterfall=waterfall(picture, label=f"Attempts over time: {trail.summary.text()}", said=took),
        summary=trail.summary.text(),
        events=_newest(lines, seen),
        events_more=max(0, len(lines) - EVENTS_SHOWN_MAX),
        stops=[stored.stream_sequence for stored in history],
        kinds=[event_type(stored.event) for stored in history] if len(history) <= 60 else [],  # noqa: PLR2004
        shown=len(seen),
        moment=trail.clocks.times[len(seen) - 1],
        acts=[] if is_past else _acts(job, shell),
    )


def editable(details: JobDetails) -> str | None:
    """Return the input of a job as a form holds it; None where it is gone, or too long for one."""
    if isinstance(details.input, Absent):
        return None
    text = json_text(details.input)
    return text if len(text) <= _EDITED_MAX else None


def _newest(lines: list[EventLine], seen: Sequence[StoredEvent]) -> list[EventLine]:
    """Return as many events as a page shows, around the moment that is looked at."""
    begin = max(0, min(len(seen) - EVENTS_SHOWN_MAX // 2, len(lines) - EVENTS_SHOWN_MAX))
    return lines[begin : begin + EVENTS_SHOWN_MAX]


def _line(stored: StoredEvent, line: Line, fields: dict[str, Any], last: int) -> EventLine:
    return EventLine(
        line=line,
        hash=hashlib.sha256(stored.data).hexdigest(),
        fields=fields,
        after=stored.stream_sequence > last,
    )


def _acts(job: Job, shell: Shell) -> list[Act]:
    """Return what whoever looks can do to a job in its state."""
    found: list[Act] = []
    is_open = job.state is JobState.RUNNING or job.state in WAITING_STATES
    if "review" in shell.may and job.state is JobState.DEAD_LETTERED:
        found.extend(("requeue", "discard"))
    if "cancel" in shell.may:
        if job.state in {JobState.SCHEDULED, JobState.RETRY_WAIT}:
            found.extend(("retry", "reschedule"))
        if job.paused_by_operator:
            found.append("resume")
        elif is_open and not (job.pause_requested or job.cancel_requested):
            found.append("pause")
        if is_open and not job.cancel_requested:
            found.append("cancel")
    return found
