"""Acts of forms on pages that are not among the verbs shared with the HTTP API and the command line."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from jobledger.admin import run_acts
from jobledger.admin.graphs import require_of_nodes
from jobledger.admin.verbs.jobs import RequeueJob
from jobledger.gateway.acts import bulk_input
from jobledger.gateway.acts.bulk_act import begin_act
from jobledger.gateway.acts.bulk_input import PERMISSIONS, QUEUE, TASK, ToDo, job_id_of
from jobledger.gateway.acts.verification import begin_check
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.gateway.pages.parameters import read_query
from jobledger.gateway.pages.schema_fields import fields_of, input_of, value_of
from jobledger.gateway.pages.views.job import digest_of, job_of
from jobledger.gateway.pages.views.plan import Query, chosen_of
from jobledger.gateway.pages.views.rerun import chosen
from jobledger.gateway.pages.views.run import signal_fields
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import check_text
from jobledger.ledger.model.reserved_ids import check_unreserved
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.nats.task_book import find_task
from jobledger.ledger.reruns.plans import RerunRequest
from jobledger.ledger.sent_signals import announced_workflow


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


async def do_plan(sent: SentForm) -> str:
    """Begin the job that does a plan; a plan that is sent twice is done once.

    Raises: ProblemError, LedgerFullError, UnreachableError.
    """
    fields, by = sent.fields, sent.principal.name
    query = read_query(Query, fields.pairs())
    sent.principal.require(PERMISSIONS[query.verb])
    reason = fields.reason()
    if query.before is None:
        raise ProblemError("BAD_REQUEST", "the form does not say when it was planned: plan it again")
    name = msgspec.json.encode([by, query.said(), query.before, reason]).decode()
    ledger, ref = sent.gateway.ledger, JobRef(queue=QUEUE, job_id=job_id_of(name))
    if (
        await load(ledger.log, ref)
    ).job is None:  # else the plan was begun before, and its jobs may have changed
        chosen = await chosen_of(sent.looked, query, query.before)
        if not chosen:
            raise ProblemError("BAD_REQUEST", "no job matches any more: plan it again")
        jobs = [bulk_input.Job(each.ref.queue, each.ref.job_id, each.task) for each in chosen]
        to_do = ToDo(act=query.verb, reason=reason, per_minute=query.per_minute)
        await begin_act(ledger, sent.principal, ref.job_id, to_do, jobs)
    return address(f"/jobs/{QUEUE}/{ref.job_id}") if sent.principal.may("view", QUEUE, TASK) else "/acts"


async def run_graph(sent: SentForm, name: str) -> str:
    """Begin a run in the name of the form's sender; return its page. Raises: ProblemError, and as `graphs.run`."""
    ledger, fields = sent.gateway.ledger, sent.fields
    require_of_nodes(sent.principal, "queue", name, await ledger.graphs.get(name))
    text = check_text(fields.text("input").encode() or b"{}", what=f"input of graph {name}")
    try:
        values = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the input of graph {name} must be a JSON object: {error}") from error
    chosen = fields.one("id") or None
    if chosen is not None:
        check_unreserved(chosen)
    with acting_for(None):  # the permission for each node was checked
        made = await ledger.graphs.run(name, values, id=chosen, by=sent.principal.name)
    return address(f"/jobs/{made.ref.queue}/{made.id}")


async def check_ledger(sent: SentForm) -> str:
    """Begin a check of the whole ledger. Raises: ProblemError, and as `Ledger.enqueue`."""
    sent.principal.require_everywhere("manage")
    made = await begin_check(sent.gateway.ledger, sent.principal.name)
    return address(f"/jobs/{made.queue}/{made.id}")


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
