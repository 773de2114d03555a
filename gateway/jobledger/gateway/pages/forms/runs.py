"""Beginning a planned rerun."""

from __future__ import annotations

import hashlib

import msgspec

from jobledger.admin import run_acts
from jobledger.gateway.pages.forms.jobs import changed_input
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.gateway.pages.views.job import job_of
from jobledger.gateway.pages.views.rerun import chosen
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.reruns.plans import RerunRequest


async def begin_again(sent: SentForm, queue: str, id: str) -> str:  # noqa: A002 - as in the address
    """Begin a rerun in the name of the form's sender, and return its page; a plan that is sent twice makes one rerun.

    Raises: ProblemError, PLAN_EXPIRED for a run that changed after the plan; and as `run_acts.rerun`.
    """
    fields, rows, by = sent.fields, sent.gateway.rows, sent.principal.name
    ref, job = await job_of(sent.looked, queue, id, "review")
    reason, at = fields.reason(), fields.moment("as_it_was")
    how: RerunRequest = {**chosen(fields.one("step")), "at": at}
    changed = changed_input(sent, job)
    plan = await run_acts.rerun_planned(rows, ref.job_id, queue, **how)
    if plan.rerun_of.sequence != fields.whole("sequence"):
        raise ProblemError("PLAN_EXPIRED", "the run has changed since this was planned: plan it again")
    name = msgspec.json.encode([by, queue, id, plan.rerun_of, fields.one("planned"), reason, changed])
    new_id = f"rerun-{hashlib.sha256(name).hexdigest()[:40]}"
    how |= {"by": by, "reason": reason, "id": new_id, "input": changed}
    made = await run_acts.rerun(rows, ref.job_id, queue, **how)
    return address(f"/jobs/{made.queue}/{made.id}")
