"""What a person does to queues, schedules and limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from jobledger.admin.limits import remove_limit, set_limit
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


async def pause_queue(sent: Sent, queue: str) -> str:
    """Pause a queue, for a time or until it is resumed. Raises: ProblemError, and as `Ledger.pause_queue`."""
    sent.principal.require("manage", queue)
    ledger, minutes = sent.gateway.ledger, sent.fields.number("minutes")
    await ledger.pause_queue(
        queue,
        until=None if minutes is None else ledger.clock.now() + timedelta(minutes=minutes),
        reason=sent.fields.reason(),
        interrupt="interrupt" in sent.fields,
        by=sent.principal.name,
    )
    return address("/queues")


async def resume_queue(sent: Sent, queue: str) -> str:
    """Resume a queue. Raises: ProblemError, and as `Ledger.resume_queue`."""
    sent.principal.require("manage", queue)
    await sent.gateway.ledger.resume_queue(queue, reason=sent.fields.reason(), by=sent.principal.name)
    return address("/queues")


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


async def change_limit(sent: Sent) -> str:
    """Set a limit or one key of it; a field that is left empty stays as it is. Raises: ProblemError, as `set_limit`."""
    sent.principal.require_everywhere("manage")
    fields = sent.fields
    given: dict[str, Any] = {"slots": fields.whole("slots"), "burst": fields.whole("burst")}
    given |= {name: fields.number(name) for name in ("rate", "per_s", "weight")}
    changes = {name: value for name, value in given.items() if value is not None}
    for name in ("slots", "rate"):
        if f"no_{name}" in fields:
            changes[name] = None
    for name in ("queues", "tasks"):
        if patterns := fields.one(name).split():
            changes[name] = () if patterns == ["none"] else tuple(sorted(set(patterns)))
    if not changes:
        raise ProblemError(
            "BAD_REQUEST", "nothing was changed: give slots, rate, period, burst, weight, queues or tasks"
        )
    await set_limit(
        sent.gateway.ledger, fields.one("limit"), changes, reason=fields.reason(), by=sent.principal.name
    )
    return address("/limits")


async def drop_limit(sent: Sent) -> str:
    """Take the definition of a limit away, so that its jobs stay held. Raises: as `remove_limit`."""
    sent.principal.require_everywhere("manage")
    fields = sent.fields
    await remove_limit(
        sent.gateway.ledger, fields.one("limit"), reason=fields.reason(), by=sent.principal.name
    )
    return address("/limits")
