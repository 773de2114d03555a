"""What a person does to schedules, and to the ledger."""

from __future__ import annotations

from typing import Final

from jobledger.gateway.acts.verifying import begin_check
from jobledger.gateway.pages.page import Sent
from jobledger.gateway.pages.rendering import address
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import ScheduleNotFoundError
from jobledger.ledger.model.rights.grants import Permission

#: Which permission each act on a schedule needs, by the verb in the address.
VERBS: Final[dict[str, Permission]] = {
    "pause": "manage",
    "resume": "manage",
    "remove": "manage",
    "trigger": "queue",
}


async def check_ledger(sent: Sent) -> str:
    """Have the whole ledger checked. Raises: ProblemError, and as `Ledger.enqueue`."""
    sent.principal.require_everywhere("manage")
    made = await begin_check(sent.gateway.ledger, sent.principal.name)
    return address(f"/jobs/{made.queue}/{made.id}")


async def act_on_schedule(sent: Sent, name: str, verb: str) -> str:
    """Pause, resume, trigger or remove a schedule. Raises: ProblemError, and as the verbs of schedules."""
    schedules, by = sent.gateway.ledger.schedules, sent.principal.name
    if verb not in VERBS:
        raise ProblemError("ENDPOINT_NOT_FOUND", f"nobody can {verb[:40]!r} a schedule here")
    sent.principal.require(VERBS[verb])
    reason = sent.fields.reason()
    definition = (await schedules.get(name)).definition
    missing = ScheduleNotFoundError(name)
    sent.principal.require_about(VERBS[verb], definition.queue, definition.task, missing)
    match verb:
        case "pause":
            await schedules.pause(name, reason=reason, by=by)
        case "resume":
            await schedules.resume(name, reason=reason, by=by)
        case "remove":
            await schedules.remove(name, reason=reason, by=by)
        case _:
            made = await schedules.trigger(name, reason=reason, by=by)
            return address(f"/jobs/{made.queue}/{made.job_id}")
    return address("/schedules")
