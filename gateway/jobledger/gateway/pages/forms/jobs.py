"""Forms of one job that need more than a verb: an edited input, or a signal with fields of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from jobledger.admin import run_acts
from jobledger.admin.verbs.jobs import RequeueJob
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.gateway.pages.schema_fields import value_of
from jobledger.gateway.pages.views.job import digest_of, job_of
from jobledger.gateway.pages.views.run import signal_fields
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.job import Job
from jobledger.ledger.sent_signals import announced_workflow


async def requeue(sent: SentForm, queue: str, id: str) -> str:  # noqa: A002 - as in the address
    """Give a dead letter new attempts, perhaps with another input. Raises: ProblemError, and as `Ledger.requeue`."""
    _, job = await job_of(sent.looked, queue, id, "review")
    fields = sent.fields
    wish = RequeueJob(
        id=id,
        queue=queue,
        reason=fields.reason(),
        attempts=fields.whole("attempts") or 1,
        input=changed_input(sent, job),
        priority=next((each for each in PRIORITIES if each == fields.one("priority")), None),
    )
    await wish.perform(GatewayPlace(sent))
    return address(f"/jobs/{queue}/{id}")


async def signal(sent: SentForm, queue: str, id: str) -> str:  # noqa: A002 - as in the address
    """Send a signal: the typed JSON, else the value from the fields of its form.

    Raises: ProblemError, and as `run_acts.signal`.
    """
    _, job = await job_of(sent.looked, queue, id, "queue")
    name, fields = sent.fields.one("name"), None
    if "value" not in sent.fields:
        workflow = await announced_workflow(sent.gateway.ledger, job.task, job.order.version)
        fields = signal_fields(workflow, name)
    value = value_of(fields, sent.fields)
    await run_acts.signal(sent.gateway.rows, id, name, value, queue=queue, by=sent.principal.name)
    return address(f"/jobs/{queue}/{id}")


def changed_input(sent: SentForm, job: Job) -> dict[str, Any] | None:
    """Return the new input of a form, None if it was not changed. Raises: ProblemError."""
    fields = sent.fields
    text = fields.text("input")
    if not text.strip() or digest_of(text) == fields.one("input_before"):
        return None
    sent.principal.require("payloads", job.queue, job.task)
    sent.principal.require("queue", job.queue, job.task)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProblemError("JOB_INVALID_INPUT", f"the input is no JSON object: {error}") from error
