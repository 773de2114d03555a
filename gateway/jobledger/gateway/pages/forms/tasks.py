"""Adding a job from a task's form."""

from __future__ import annotations

from typing import Any

import msgspec

from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.gateway.pages.schema_fields import fields_of, input_of
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.task_book import find_task


async def add_job(sent: SentForm, task: str) -> str:
    """Enqueue a job of a task in the name of the form's sender; return its page.

    Raises: ProblemError, and as `Ledger.enqueue_named`.
    """
    ledger, fields = sent.gateway.ledger, sent.fields
    sent.principal.require("queue", None, check_token("task name", task))
    found = await find_task(ledger.inbox, ledger.names, task)
    if found is None:
        raise ProblemError("TASK_NOT_FOUND", f"no worker ever had a task {task}")
    queue = fields.one("queue") or found.queue
    sent.principal.require("queue", queue, task)
    how: dict[str, Any] = {"by": sent.principal.name, "queue": queue, "id": fields.one("id") or None}
    how |= {"delay_s": fields.number("delay_s"), "max_attempts": fields.whole("max_attempts")}
    how |= {"tenant": fields.one("tenant") or None, "limits": fields.one("limits").split()}
    if fields.one("priority") in PRIORITIES:
        how["priority"] = fields.one("priority")
    value = msgspec.Raw(input_of(None if "input" in fields else fields_of(found.input), fields))
    made = await ledger.enqueue_named(task, value, **how)
    return address(f"/jobs/{made.ref.queue}/{made.id}")
