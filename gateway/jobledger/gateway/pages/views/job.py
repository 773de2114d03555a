"""One job: its problem first, then its timeline, then every event with its hash, and its values and facts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from jobledger.admin.acts import why as why_of
from jobledger.admin.diagnoses import Noun
from jobledger.admin.errors import JobNotHeldError, MissingEvents
from jobledger.admin.find import find_history, newest_life
from jobledger.admin.past import AsOf, events_until
from jobledger.admin.rows import View
from jobledger.admin.runs import StepShown
from jobledger.admin.views import Absent, JobDetails, job_details
from jobledger.audit.trail import Line, trail_of
from jobledger.audit.verify.links import ChainCheck
from jobledger.audit.why import Why
from jobledger.gateway.pages.blockers import Cure, cures_of, nouns_of
from jobledger.gateway.pages.charts.timeline import TimelinePicture, timeline
from jobledger.gateway.pages.frames import RaisedError, read_traceback
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import OwnPage, Viewer, When
from jobledger.gateway.pages.runlines import TimelineChoice, attempt_lines, run_lines
from jobledger.gateway.pages.shell import PageFacts, PastMoment, Shell, opened
from jobledger.gateway.pages.spans import drawn
from jobledger.gateway.pages.views.run import RunPart, run_part
from jobledger.gateway.pages.words import json_text
from jobledger.gateway.visibility import facts_for, names_cleared
from jobledger.ledger.model.chain import fold, load
from jobledger.ledger.model.codec import StoredEvent, digest
from jobledger.ledger.model.errors import JobNotFoundError, LedgerError
from jobledger.ledger.model.events import ErrorInfo, event_type
from jobledger.ledger.model.fingerprint import job_fingerprint
from jobledger.ledger.model.job import PENDING_STATES, Job, JobState
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.model.runs.wait_words import all_awaited
from jobledger.ledger.model.subjects import JobRef, check_token, is_own_queue
from jobledger.ledger.nats.attempt_logs import LogLine
from jobledger.ledger.nats.task_book import find_task
from jobledger.ledger.opened_jobs import opened_history
from jobledger.ledger.sent_signals import announced_workflow
from jobledger.projections import JobRow

# A job whose events were moved into an archive: its end, and the command that shows all of it.


class ArchivedPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    row: JobRow
    where: str  #: one sentence


async def archived(looked: Viewer, queue: str, error: JobNotHeldError) -> ArchivedPage:
    """Return the page of a job that only the lists still know. Raises: the given error if the viewer may not see it."""
    looked.principal.require("view", queue)
    async with opened(looked) as (view, shell):
        row = view.store.job(queue, error.job_id)
        if row is None or error.missing is None or not looked.principal.may("view", row.queue, row.task):
            raise error
        return ArchivedPage(shell=shell, row=row, where=where_is(error.missing, row.id))


def where_is(missing: MissingEvents, job_id: str) -> str:
    """Say where the missing events are, and which command reads them."""
    return missing.sentence(f"`jobledger jobs show {job_id} --archive DIR`")


Act = Literal["cancel", "retry", "reschedule", "requeue", "discard", "pause", "resume"]
Text = Annotated[str, msgspec.Meta(max_length=400)]

EVENTS_SHOWN_MAX: Final = 300
LINES_SHOWN_MAX: Final = 300
_EDITED_MAX: Final = 100_000  #: longest input in characters that a form holds
_KINDS_MAX: Final = 60
#: Event types whose successive events are shown as one row.
_FOLDED: Final = frozenset({"progressed", "checkpointed", "joined"})


class Query(When, frozen=True, kw_only=True):
    """The parts of the page that are open."""

    open: tuple[Text, ...] = ()  #: lines of the timeline that were toggled
    step: Text = ""  #: the step that is shown beside the timeline


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or the newest one of several that repeat each other."""

    line: Line
    hash: str  #: sha256 of its stored bytes, hex
    fields: Any  #: the event as stored, without values
    after: bool  #: True if it is later than the moment shown
    folded: int = 0  #: number of similar events before it in the row


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """The details of one step."""

    shown: StepShown  #: the step, with its values if the viewer may see them
    error: ErrorInfo | None
    traceback: list[RaisedError]
    events: list[EventLine]


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """The job below a run that made it fail."""

    queue: str
    id: str
    task: str
    item: int
    error_type: str
    error: str
    traceback: list[RaisedError]
    others: int  #: number of other failed jobs


class _JobRead(NamedTuple):
    """The facts read about a job."""

    job: Job  #: the job at the moment shown
    why: Why
    nouns: list[Noun]  #: things that the answer names
    history: list[StoredEvent]
    seen: list[StoredEvent]  #: events up to the moment shown
    chain: ChainCheck
    details: JobDetails
    run: RunPart | None
    hidden: bool
    announced: bool  #: whether a worker ever had its task

    @property
    def is_past(self) -> bool:
        """Whether the job has newer events than those shown."""
        return len(self.seen) < len(self.history)


class JobPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    details: JobDetails
    job: Job
    awaiting: str  #: the reason of a paused run's wait, as in the lists; "" otherwise
    why: Why
    nouns: list[Noun]  #: things that the answer names
    cures: list[Cure]  #: forms that end the job's wait
    hidden: bool  #: True if the viewer may not see values
    editable: str | None  #: its input as text of a form; None: hidden, deleted, too long, or the ledger's own
    editable_hash: str  #: sha256 of that text, which shows whether a person changed it
    traceback: list[RaisedError]
    culprit: Culprit | None  #: the job below a run whose failure made the run fail
    cause: str  #: fingerprint of a dead letter's cause
    alike: int  #: other dead letters of the same cause
    run: RunPart | None  #: None: the job recorded no step
    step: StepPart | None
    chain: ChainCheck
    missing: str = ""  #: place of its archived first events, "" if all are here
    hash: str  #: hash of the newest event
    again: bool  #: True if the page offers a form to add a similar job
    timeline: TimelinePicture
    summary: str
    events: list[EventLine]
    events_hidden: int
    stops: list[int]  #: stream sequences of all events
    kinds: list[str]  #: types of the events, if they are few enough to show
    shown: int  #: number of events up to the moment shown
    acts: list[Act]
    logs: tuple[LogLine, ...] = ()  #: newest log lines of its attempts; none on a past page


async def job_page(looked: Viewer, queue: str, id: str, *, query: Query) -> JobPage | OwnPage:  # noqa: A002 - as in the address
    """Return a job as it is, or as of a past moment; for an archived job, the facts in the lists."""
    gateway, past = looked.gateway, query.as_of()
    try:
        found = await find_history(gateway.rows, id, queue)
    except JobNotHeldError as error:
        return OwnPage("archived.html", await archived(looked, queue, error))
    stored, _ = newest_life(found.history)
    first = stored[0].event
    looked.principal.require_about("view", first.queue, first.task, JobNotFoundError(id))
    ledger, hidden = gateway.ledger, not looked.principal.may("payloads")
    history = names_cleared(looked.principal, stored)
    if not hidden:
        history = await opened_history(ledger.keys, history)
    seen = history
    if past is not None:
        seen = events_until(history, await past.moment(ledger.log, ledger.clock))
    is_past = past is not None and len(seen) < len(history)
    job = fold(seen).job
    assert job is not None, "a history is not empty"
    asked = AsOf(stream_sequence=seen[-1].stream_sequence) if is_past else None
    narrowed = facts_for(looked.principal)
    explained = await why_of(gateway.rows, job.id, job.queue, past=asked, narrowed=narrowed, opens=not hidden)
    of_run = bool(job.steps or job.signals)
    workflow = await announced_workflow(ledger, job.task, job.order.version) if of_run else None
    details = await job_details(ledger, job, history, hidden=hidden_from(looked.principal))
    read = _JobRead(
        job=job,
        why=explained.why,
        nouns=list(nouns_of(job, explained.facts)),
        history=history,
        seen=seen,
        chain=found.chain,
        details=details,
        run=run_part(job, seen, looked.principal, workflow),
        hidden=hidden,
        announced=not hidden and await find_task(ledger.inbox, ledger.names, job.task) is not None,
    )
    async with opened(looked) as (view, shell):
        with view.store.one_moment():
            shown = _page(looked, view, shell, query, read)
    return msgspec.structs.replace(
        shown,
        logs=() if hidden or is_past else await _logs(looked, job),
        missing="" if found.missing is None else where_is(found.missing, job.id),
    )


async def job_of(looked: Viewer, queue: str, job_id: str, permission: Permission) -> tuple[JobRef, Job]:
    """Return the present job of an address to a viewer with this permission. Raises: ProblemError, JobNotFoundError."""
    looked.principal.require(permission, queue)
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", job_id))
    job = (await load(looked.gateway.ledger.log, ref)).job
    if job is None:
        raise JobNotFoundError(job_id)
    looked.principal.require_about(permission, queue, job.task, JobNotFoundError(job_id))
    return ref, job


async def newest_event(looked: Viewer, queue: str, id: str) -> int:  # noqa: A002 - as in the address
    """Return the stream sequence of a job's newest event; 0 if the ledger has no event of that whole id.

    Raises: InvalidTokenError, UnreachableError.
    """
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", id))
    return await looked.gateway.ledger.log.newest_sequence(looked.gateway.ledger.names.chain(ref))


async def _logs(looked: Viewer, job: Job) -> tuple[LogLine, ...]:
    """Return the log lines that the page shows; none after a failed read, so that the rest is still shown."""
    handle = looked.gateway.ledger.handle_of(JobRef(queue=job.queue, job_id=job.id))
    with contextlib.suppress(LedgerError):
        return tuple((await handle.logs()).items[-LINES_SHOWN_MAX:])
    return ()


def _page(looked: Viewer, view: View, shell: Shell, query: Query, read: _JobRead) -> JobPage:
    job, history, seen = read.job, read.history, read.seen
    trail = trail_of(history, now=shell.today)
    at = trail.clocks.times[len(seen) - 1]
    text = None if read.hidden or is_own_queue(job.queue) else editable(read.details)
    last = seen[-1].stream_sequence
    events = [
        EventLine(line=line, hash=stored.hash, fields=fields, after=stored.stream_sequence > last)
        for stored, line, fields in zip(history, trail.lines, read.details.events, strict=True)
    ]
    folded = _folded(events)
    if read.is_past:  # show the time of the newest event shown, by the trail's clock
        shell = msgspec.structs.replace(shell, now=at, past=PastMoment(at=at, stream_sequence=last))
    acts = [] if read.is_past else acts_of(job, shell)
    cause = job_fingerprint(job) if job.state is JobState.DEAD_LETTERED else ""
    return JobPage(
        shell=shell,
        details=read.details,
        job=job,
        awaiting=" ".join(all_awaited(job.steps, job.awaited, by_operator=job.state is JobState.PAUSED)),
        why=read.why,
        nouns=read.nouns,
        cures=[] if read.is_past else list(cures_of(job, read.why, looked.principal, acts)),
        hidden=read.hidden,
        editable=text,
        editable_hash=digest_of(text),
        traceback=read_traceback(job.error.traceback or "") if job.error is not None else [],
        culprit=_culprit(looked, view, job) if job.steps and job.error is not None else None,
        cause=cause,
        alike=_alike(view, cause) - 1 if cause else 0,
        run=read.run,
        step=_step(job, read.run, query.step, events),
        chain=read.chain,
        hash=events[-1].hash,
        again=text is not None and not read.is_past and read.announced and _may_add(looked, job),
        timeline=_timeline(looked, view, shell, query, read, trail.clocks.times),
        summary=(trail_of(seen, now=at) if read.is_past else trail).summary.text(),
        events=_newest(folded, last),
        events_hidden=max(0, len(folded) - EVENTS_SHOWN_MAX),
        stops=[stored.stream_sequence for stored in history],
        kinds=[event_type(stored.event) for stored in history] if len(history) <= _KINDS_MAX else [],
        shown=len(seen),
        acts=acts,
    )


def _may_add(looked: Viewer, job: Job) -> bool:
    """Return whether the viewer may add a job with the input of this one."""
    may = looked.principal.may
    return may("payloads", job.queue, job.task) and may("queue", job.queue, job.task)


def _timeline(  # noqa: PLR0917 - parts of a page
    looked: Viewer, view: View, shell: Shell, query: Query, read: _JobRead, times: Sequence[datetime]
) -> TimelinePicture:
    job, seen = read.job, read.seen
    shown = seen[-1].stream_sequence if read.is_past else None
    picture = drawn(read.history, times, now=shell.today, shown=shown)
    asked = TimelineChoice(
        store=view.store,
        principal=looked.principal,
        opened=frozenset(query.open),
        chosen=query.step,
        link=_linked(looked, job, query),
        now=times[len(seen) - 1] if read.is_past else job.finished_at or shell.today,
    )
    lines = (
        run_lines(job, seen, picture.bars, asked)
        if job.steps
        else attempt_lines(job, picture.bars, shell.today)
    )
    begin = times[0] if job.steps else read.history[0].stored_at
    return timeline(lines, begin=begin, end=picture.end, cut=picture.cut)


def _linked(looked: Viewer, job: Job, query: Query) -> Any:
    """Return a function that makes addresses: of this page with a line opened, closed or chosen, or of another page."""
    here, carried = f"/jobs/{job.queue}/{job.id}", list(looked.when.named())

    def link(what: str, key: str) -> str:
        if what == "job":
            return address(f"/jobs/{key}", carried)
        if what == "list":
            return address("/jobs", [("q", f"run:{key}"), *carried])
        opened = [each for each in query.open if what != "open" or each != key]
        opened += [key] if what == "open" and key not in query.open else []
        step = key if what == "step" else query.step
        pairs = [("open", each) for each in opened] + ([("step", step)] if step else [])
        return address(here, [*pairs, *carried])

    return link


_CULPRITS: Final = (
    "SELECT j.queue, j.id, j.task, j.parent_item, j.error_type, j.error, d.traceback, count(*) OVER () FROM jobs AS j "
    "LEFT JOIN dead_letters AS d ON d.job_id = j.id AND d.queue = j.queue "
    "WHERE j.parent_id = ? AND j.parent_queue = ? AND j.error_type IS NOT NULL AND j.status IN ('dead_lettered', 'discarded', 'cancelled') "
    "ORDER BY j.completed_at LIMIT 1"
)


def _culprit(looked: Viewer, view: View, job: Job) -> Culprit | None:
    """Return the first job that made a run fail. If that job is a run, too, its own page shows the job below it."""
    found = view.store.select(_CULPRITS, (job.id, job.queue))
    if job.error is None or job.error.type != "ChildFailedError" or not found:
        return None
    queue, name, task, item, kind, error, traceback, count = found[0]
    if not looked.principal.may("view", queue, task):
        return None
    return Culprit(
        queue=queue,
        id=name,
        task=task,
        item=item,
        error_type=kind,
        error=error or "",
        traceback=read_traceback(traceback or ""),
        others=count - 1,
    )


def _alike(view: View, cause: str) -> int:
    ((found,),) = view.store.select("SELECT count(*) FROM dead_letters WHERE fingerprint = ?", (cause,))
    return int(found)


def _step(job: Job, run: RunPart | None, key: str, events: Sequence[EventLine]) -> StepPart | None:
    shown = None if run is None else next((each for each in run.steps if each.key == key), None)
    if shown is None:
        return None
    error = job.steps[key].error
    return StepPart(
        shown=shown,
        error=error,
        traceback=[] if error is None else read_traceback(error.traceback or ""),
        events=[each for each in events if isinstance(each.fields, dict) and each.fields.get("step") == key],
    )


def digest_of(text: str | None) -> str:
    """Return the hash of an input in a form, which shows whether a person changed it; "" without an input."""
    return "" if text is None else digest(text.encode())


def editable(details: JobDetails) -> str | None:
    """Return the input of a job as text of a form; None if it is deleted, or too long for a form."""
    if isinstance(details.input, Absent):
        return None
    text = json_text(details.input)
    return text if len(text) <= _EDITED_MAX else None


def _newest(lines: list[EventLine], last: int) -> list[EventLine]:
    """Return as many events as a page shows, around the moment shown."""
    seen = sum(each.line.stream_sequence <= last for each in lines)
    begin = max(0, min(seen - EVENTS_SHOWN_MAX // 2, len(lines) - EVENTS_SHOWN_MAX))
    return lines[begin : begin + EVENTS_SHOWN_MAX]


def _folded(lines: list[EventLine]) -> list[EventLine]:
    """Return the events, with only the newest one of each row of repeats."""

    def kind(each: EventLine) -> tuple[str, bool]:
        return each.line.event if each.line.event in _FOLDED else each.hash, each.after

    rows = [list(group) for _, group in itertools.groupby(lines, key=kind)]
    return [msgspec.structs.replace(several[-1], folded=len(several) - 1) for several in rows]


def acts_of(job: Job, shell: Shell) -> list[Act]:
    """Return the acts that the viewer can do to a job in its state, the likeliest first."""
    found: list[Act] = []
    is_open = job.state is JobState.RUNNING or job.state in PENDING_STATES
    if "review" in shell.may and job.state is JobState.DEAD_LETTERED:
        found.extend(("requeue", "discard"))
    if "cancel" in shell.may:
        if job.state in {JobState.SCHEDULED, JobState.RETRY_WAIT}:
            found.extend(("retry", "reschedule"))
        if job.state is JobState.PAUSED:
            found.append("resume")
        elif is_open and not (job.pause_requested or job.cancel_requested):
            found.append("pause")
        if is_open and not job.cancel_requested:
            found.append("cancel")
    return found


# --- The gist of a job, shown within a list.

_PEEK_EVENTS: Final = 6


async def peek(looked: Viewer, queue: str, id: str, *, query: When) -> JobPage:  # noqa: A002 - as in the address
    """Return the gist of a job: its page with its newest events, and no input to edit. Raises: as `job_page`."""
    found = await job_page(
        looked, queue, id, query=Query(at=query.at, sequence=query.sequence, range=query.range)
    )
    if isinstance(found, OwnPage):
        raise JobNotFoundError(id)
    return msgspec.structs.replace(
        found,
        editable=None,
        events=found.events[-_PEEK_EVENTS:],
        events_hidden=max(0, len(found.events) - _PEEK_EVENTS),
    )
