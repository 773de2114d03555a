"""Doing a plan for many jobs."""

from __future__ import annotations

import msgspec

from jobledger.gateway.acts.bulk_act import begin_act
from jobledger.gateway.acts.bulk_input import PERMISSIONS, QUEUE, TASK, Job, ToDo, job_id_of
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm
from jobledger.gateway.pages.parameters import read_query
from jobledger.gateway.pages.views.plan import Query, chosen_of
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.subjects import JobRef


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
        jobs = [Job(each.ref.queue, each.ref.job_id, each.task) for each in chosen]
        to_do = ToDo(act=query.verb, reason=reason, per_minute=query.per_minute)
        await begin_act(ledger, sent.principal, ref.job_id, to_do, jobs)
    return address(f"/jobs/{QUEUE}/{ref.job_id}") if sent.principal.may("view", QUEUE, TASK) else "/acts"
