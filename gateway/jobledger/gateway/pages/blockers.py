"""Links to what a job waits for, and forms that end the wait, made from the hints of why it waits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from jobledger.admin.diagnoses import Noun
from jobledger.audit.why import Facts, Why
from jobledger.gateway.remedies import hint_over_http
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission

#: By act on a job: the permission that it needs, and the text of its button.
_ACTS: Final[dict[str, tuple[Permission, str]]] = {
    "resume": ("cancel", "Resume"),
    "retry": ("cancel", "Run now"),
    "requeue": ("review", "Requeue"),
}


class Cure(msgspec.Struct, frozen=True, kw_only=True):
    """A form that ends a wait."""

    action: str  #: address that the form is sent to
    label: str
    about: str
    limit: str = ""  #: the limit that the form sets, if any


def nouns_of(job: Job, facts: Facts) -> Iterator[Noun]:
    """Yield the things with pages that sentences about a job name; `facts` hold only what the viewer may see."""
    yield Noun("queue", job.queue, f"queue {job.queue}")
    if job.running_attempt is not None:
        yield Noun("worker", job.running_attempt.worker)
    if facts.lock is not None and facts.lock.holder:
        yield Noun("worker", facts.lock.holder)
    held = () if facts.held is None else facts.held.limits
    for limit in dict.fromkeys((*job.order.limits, *(each.limit for each in held))):
        yield _limit(limit)
    for each in held:
        yield from (Noun("job", name) for name in each.holders)
    for child in (each for found in facts.children.values() for each in found):
        yield Noun("job", f"{child.queue}/{child.job}", child.job)
        yield from map(_limit, child.limits)
    key = None if facts.key is None else facts.key.key.state
    if key is not None and not facts.key_elsewhere:
        yield Noun("job", f"{key.owner.queue}/{key.owner.job_id}", f"job {key.job}")


def _limit(limit: str) -> Noun:
    """Return a limit as a noun; the internal limit of a schedule's jobs is shown as the schedule."""
    name, key = split(limit)
    return Noun("schedule", key, limit) if name == "schedule" else Noun("limit", name, limit)


def cures_of(job: Job, why: Why, principal: Principal, offered: Collection[str]) -> Iterator[Cure]:
    """Yield the proposed acts that `principal` may do, without those that the page offers for the job itself."""
    may = principal.may
    for hint in dict.fromkeys((why.hint, *(each.hint for each in why.waits))):
        method, _, path = hint_over_http(hint, job.queue).partition(" /v1/")
        match (method, *path.split(" ")[0].split("/")):
            case ("POST", "queues", queue, "resume") if may("manage", queue):
                yield Cure(action=f"/queues/{queue}/resume", label="Resume", about=f"queue {queue}")
            case ("PUT", "limits", limit) if may("manage") and principal.is_everywhere:
                yield Cure(action="/limits/set", label="Set limit", about=limit, limit=limit)
            case ("POST", "jobs", queue, name, verb) if verb in _ACTS and may(_ACTS[verb][0], queue):
                if (queue, name) != (job.queue, job.id) or verb not in offered:
                    yield Cure(action=f"/jobs/{queue}/{name}/{verb}", label=_ACTS[verb][1], about=name)
            case _:
                pass
