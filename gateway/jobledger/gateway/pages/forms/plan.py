"""Doing what was planned for many jobs."""

from __future__ import annotations

from typing import cast

from jobledger.admin.bulk import perform
from jobledger.admin.choice import Chosen
from jobledger.gateway.pages.page import Sent, Told
from jobledger.gateway.pages.shell import surround
from jobledger.gateway.pages.views.plan import JOBS_MAX, NEEDS, Verb, act_of, check_scope, ref_of, told
from jobledger.gateway.problems import ProblemError


async def do_plan(sent: Sent) -> Told:
    """Act on each job that the plan named; one that refuses does not stop the others.

    Raises: ProblemError, UnreachableError.
    """
    fields, by = sent.fields, sent.principal.name
    verb, reason = fields.one("verb"), fields.one("reason")
    act = act_of(verb, reason, by)
    sent.principal.require(NEEDS[verb])
    if not reason:
        raise ProblemError("BAD_REQUEST", "give a reason: it is kept in the ledger with your name")
    names = fields.many("job")
    if not 0 < len(names) <= JOBS_MAX:
        raise ProblemError("BAD_REQUEST", f"a plan is about 1 to {JOBS_MAX} jobs, got {len(names)}")
    chosen = [Chosen(ref=ref_of(each), task="") for each in names]
    await check_scope(sent.looked, NEEDS[verb], [each.ref for each in chosen])
    results = await perform(sent.gateway.rows, act, chosen, plan=False)
    async with sent.gateway.projection.opened() as view:
        shell = await surround(sent.looked, view, None, fleet=False)
    return Told("plan.html", told(shell, cast("Verb", verb), results, by=by, reason=reason))
