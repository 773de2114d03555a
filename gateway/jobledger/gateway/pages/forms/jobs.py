"""What a person does to one job."""

from __future__ import annotations

import hashlib
from typing import Any, Final, cast

import msgspec

from jobledger.admin import run_acts
from jobledger.gateway.pages.page import Sent
from jobledger.gateway.pages.rendering import address
from jobledger.gateway.pages.schema_fields import value_of
from jobledger.gateway.pages.views.run import signal_fields
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.dead_letters import Changes
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.signalling.giving import announced_workflow

#: Which permission each act needs, by the verb in the address.
VERBS: Final[dict[str, Permission]] = {
    "cancel": "cancel",
    "retry": "cancel",
    "requeue": "review",
    "discard": "review",
    "pause": "cancel",
    "resume": "cancel",
    "signal": "queue",
    "reschedule": "cancel",
    "note": "review",
}
#: Acts that say enough by themselves.
_WITHOUT_REASON: Final = frozenset({"note", "signal"})


async def act_on_job(sent: Sent, queue: str, id: str, verb: str) -> str:  # noqa: A002 - as in the address
    """Do one act, in the name of who sent the form; return the page of the job.

    Raises: ProblemError, JobNotFoundError, and as the verbs of `Ledger`.
    """
    ledger, by = sent.gateway.ledger, sent.principal.name
    if verb not in VERBS:
        raise ProblemError("ENDPOINT_NOT_FOUND", f"nobody can {verb[:40]!r} a job here")
    ref, job = await job_of(sent, queue, id, VERBS[verb])
    reason = "" if verb in _WITHOUT_REASON else sent.fields.reason()
    match verb:
        case "cancel":
            await ledger.cancel(ref, reason=reason, by=by)
        case "retry":
            await ledger.retry(ref, reason=reason, by=by)
        case "discard":
            await ledger.discard(ref, reason=reason, by=by)
        case "pause":
            await run_acts.pause_ref(ledger, ref, reason=reason, by=by)
        case "resume":
            await run_acts.resume_ref(ledger, ref, reason=reason, by=by)
        case "reschedule":
            await _reschedule(sent, ref, reason)
        case "note":
            await ledger.note(ref, sent.fields.text("text").strip(), by=by)
        case "signal":
            await _signal(sent, ref, job)
        case _:
            await ledger.requeue(ref, by=by, **_changes(sent, job))
    return address(f"/jobs/{queue}/{id}")


async def job_of(sent: Sent, queue: str, job_id: str, permission: Permission) -> tuple[JobRef, Job]:
    """Return the job that a form is about, for who may act on it. Raises: ProblemError, JobNotFoundError."""
    sent.principal.require(permission, queue)
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", job_id))
    job = (await load(sent.gateway.ledger.log, ref)).job
    if job is None:
        raise JobNotFoundError(job_id)
    sent.principal.require_about(permission, queue, job.task, JobNotFoundError(job_id))
    return ref, job


async def _reschedule(sent: Sent, ref: JobRef, reason: str) -> None:
    run_at, delay_s = sent.fields.moment("run_at"), sent.fields.number("delay_s")
    if (run_at is None) == (delay_s is None):
        raise ProblemError(
            "BAD_REQUEST", "say when the job is to be due: a time or a number of seconds, one of the two"
        )
    by = sent.principal.name
    await sent.gateway.ledger.reschedule(ref, run_at=run_at, delay_s=delay_s, reason=reason, by=by)


async def _signal(sent: Sent, ref: JobRef, job: Job) -> None:
    """Send a signal: JSON that was typed, else the value that the fields of its form say. Raises: ProblemError."""
    name, fields = sent.fields.one("name"), None
    if "value" not in sent.fields:
        workflow = await announced_workflow(sent.gateway.ledger, job.task, job.order.version)
        fields = signal_fields(workflow, name)
    value = value_of(fields, sent.fields)
    by = sent.principal.name
    await run_acts.signal(sent.gateway.rows, ref.job_id, name, value, queue=ref.queue, by=by)


def _changes(sent: Sent, job: Job) -> Changes:
    fields = sent.fields
    found: Changes = {
        "reason": fields.reason(),
        "attempts": fields.whole("attempts") or 1,
        "input": changed_input(sent, job),
    }
    if fields.one("priority") in PRIORITIES:
        found["priority"] = cast("Priority", fields.one("priority"))
    return found


def changed_input(sent: Sent, job: Job) -> dict[str, Any] | None:
    """Return the new input of a form, None where it was left as it was. Raises: ProblemError."""
    fields = sent.fields
    text = fields.text("input")
    if not text.strip() or hashlib.sha256(text.encode()).hexdigest() == fields.one("input_before"):
        return None
    sent.principal.require("payloads", job.queue, job.task)
    sent.principal.require("queue", job.queue, job.task)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProblemError("JOB_INVALID_INPUT", f"the input is no JSON object: {error}") from error
