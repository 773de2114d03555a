"""What a person does to one job."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from jobledger.admin import run_acts
from jobledger.gateway.access.permissions import Permission
from jobledger.gateway.pages.page import Fields, Sent
from jobledger.gateway.pages.rendering import address
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.subjects import JobRef, check_token

#: Which permission each act needs.
_NEEDS: Final[dict[str, Permission]] = {
    "cancel": "cancel",
    "retry": "cancel",
    "requeue": "review",
    "discard": "review",
    "pause": "cancel",
    "resume": "cancel",
    "signal": "queue",
}


async def act_on_job(sent: Sent, queue: str, id: str, verb: str) -> str:  # noqa: A002 - as in the address
    """Do one act, in the name of who sent the form; return the page of the job.

    Raises: ProblemError, JobNotFoundError, and as the verbs of `Ledger`.
    """
    ledger, by, reason = sent.gateway.ledger, sent.principal.name, sent.fields.one("reason")
    if verb not in _NEEDS:
        raise ProblemError("ENDPOINT_NOT_FOUND", f"nobody can {verb[:40]!r} a job here")
    sent.principal.require(_NEEDS[verb], queue)
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", id))
    job = (await load(ledger.log, ref)).job
    if job is None:
        raise JobNotFoundError(id)
    sent.principal.require(_NEEDS[verb], queue, job.task)
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
        case "signal":
            value = (sent.fields.text("value").strip() or "null").encode()
            await run_acts.signal(sent.gateway.rows, id, sent.fields.one("name"), value, queue=queue, by=by)
        case _:
            changed = _changed(sent.fields)
            if changed is not None:
                sent.principal.require("payloads", queue, job.task)
            await ledger.requeue(
                ref, by=by, reason=reason, attempts=sent.fields.whole("attempts") or 1, input=changed
            )
    return address(f"/jobs/{queue}/{id}")


def _changed(fields: Fields) -> dict[str, Any] | None:
    """Return the new input, None where it was left as it was. Raises: ProblemError."""
    text = fields.text("input")
    if not text.strip() or hashlib.sha256(text.encode()).hexdigest() == fields.one("input_before"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProblemError("JOB_INVALID_INPUT", f"the input is no JSON object: {error}") from error
