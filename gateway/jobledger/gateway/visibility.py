"""The parts of job trees, jobs, queues, workers, workflows, limits and diagnoses that a principal may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from jobledger.admin.diagnoses import Diagnosis
from jobledger.admin.objects.fleet import LimitListed, LimitMissing, QueueShown
from jobledger.admin.rows import Rows
from jobledger.admin.runs import Tree, TreeStep
from jobledger.admin.workflows.versions import WorkflowVersion, list_workflows
from jobledger.audit.why import Facts
from jobledger.audit.why_run import ChildNow
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.marks import hide, names_hidden_from
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections.filters import Term, visible


def tree_for(principal: Principal, tree: Tree) -> Tree:
    """Return a tree without the jobs that the asker may not see, which count as hidden. The root is always in it."""
    return replace(tree, steps=tuple(_step_for(principal, step) for step in tree.steps))


def _step_for(principal: Principal, step: TreeStep) -> TreeStep:
    seen = [each for each in step.children if principal.may("view", each.queue, each.task)]
    gone = len(step.children) - len(seen)
    children = tuple(tree_for(principal, each) for each in seen)
    return TreeStep(step=step.step, children=children, hidden=step.hidden + gone)


def names_cleared(principal: Principal, history: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return a job's events without the names of jobs that the asker may not see; their stored bytes are unchanged.

    Texts made from them, such as a trail, then do not name these jobs, either.
    """
    if principal.is_everywhere:
        return list(history)
    hidden = names_hidden_from(principal)
    found: list[StoredEvent] = []
    for stored in history:
        event = hide(stored.event, hidden)
        found.append(stored if event is stored.event else replace(stored, event=event))
    return found


def facts_for(principal: Principal) -> Callable[[Job, Facts], tuple[Job, Facts]]:
    """Return a function that removes jobs that the principal may not see from a job and its facts."""

    def narrowed(job: Job, facts: Facts) -> tuple[Job, Facts]:
        if principal.is_everywhere:
            return job, facts
        held = facts.held
        if held is not None:  # jobs of any queue and task hold a limit
            held = replace(held, limits=tuple(each.without_numbers() for each in held.limits))
        key = None if facts.key is None else facts.key.key.state
        elsewhere = key is not None and not principal.may("view", key.owner.queue, job.task)
        children = {
            step: tuple(each for each in found if _may_see_child(principal, job, step, each))
            for step, found in facts.children.items()
        }
        shown = hide(job, names_hidden_from(principal))
        return shown, replace(facts, held=held, key_elsewhere=elsewhere, children=children)

    return narrowed


def _may_see_child(principal: Principal, job: Job, step: str, child: ChildNow) -> bool:
    order = job.steps[step].order
    return order is not None and principal.may("view", child.queue, order.node(child.item).task)


def terms_for(principal: Principal) -> list[Term]:
    """Return the conditions on the columns `queue` and `task` for rows that the principal may see."""
    return visible(principal.scope.queues, principal.scope.tasks)


def queue_for(principal: Principal, queue: QueueShown) -> QueueShown:
    """Return a queue; for a principal bound to tasks without its figures, which count all tasks together."""
    if principal.is_of_all_tasks:
        return queue
    return replace(queue, counts=None, oldest_waiting=None, oldest_running=None)


def workers_for(principal: Principal, workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers of the queues that the principal may see, with these queues alone.

    The tasks, jobs and counts of a worker do not say to which queue they belong, so a principal bound to queues sees
    none of them.
    """
    if principal.is_everywhere:
        return list(workers)
    found: list[WorkerInfo] = []
    for each in workers:
        queues = tuple(queue for queue in each.queues if principal.may("view", queue))
        if queues:
            found.append(
                replace(each, queues=queues, tasks=None, jobs=(), running=None, schedules=None, waits={})
            )
    return found


async def workflows_for(principal: Principal, rows: Rows) -> list[WorkflowVersion]:
    """Return the workflows in the principal's queues and tasks, with counts of visible runs only.

    Raises: ProjectionError, UnreachableError.
    """
    found = await list_workflows(rows, visible_to=terms_for(principal))
    return [
        each
        for each in found
        if principal.may("view", None, each.workflow)
        and (not each.queues or any(principal.may("view", queue) for queue in each.queues))
    ]


def limits_for(
    principal: Principal, listed: tuple[list[LimitListed], list[LimitMissing]]
) -> tuple[list[LimitListed], list[LimitMissing]]:
    """Return the limits; without holders, waiting jobs and permissions for a principal that may not see all jobs."""
    if principal.is_everywhere:
        return listed
    hidden: dict[str, Any] = {
        "taken": None,
        "keys": None,
        "most": None,
        "in_code": (),
        "queues": (),
        "tasks": (),
    }
    return [replace(each, **hidden) for each in listed[0]], []


def diagnoses_for(principal: Principal, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the diagnoses of the queues that a principal may see; a diagnosis of no single queue needs sight of all.

    Dead letters are an exception, since they were counted in those queues only. A principal bound to tasks gets none,
    since a diagnosis covers all tasks of a queue.
    """
    if principal.is_everywhere:
        return list(found)
    if not principal.is_of_all_tasks:
        return []
    return [
        each
        for each in found
        if (principal.may("view", each.queue) if each.queue else each.kind == "dead_letters")
    ]
