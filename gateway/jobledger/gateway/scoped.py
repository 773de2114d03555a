"""What of a tree of jobs, and of who works, somebody may see. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from jobledger.admin.runs import Tree, TreeStep
from jobledger.gateway.access.permissions import Principal
from jobledger.ledger.nats.leases import WorkerInfo


def tree_for(principal: Principal, tree: Tree) -> Tree:
    """Return a tree without the jobs that the asker may not see, which count as hidden. The root is always in it."""
    return replace(tree, steps=tuple(_step_for(principal, step) for step in tree.steps))


def _step_for(principal: Principal, step: TreeStep) -> TreeStep:
    seen = [each for each in step.children if principal.may("view", each.queue, each.task)]
    gone = len(step.children) - len(seen)
    children = tuple(tree_for(principal, each) for each in seen)
    return TreeStep(step=step.step, children=children, hidden=step.hidden + gone)


def workers_for(principal: Principal, workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Return who works for somebody, with the queues that he may see.

    Names of tasks and jobs do not tell of which queue they are: who is bound to some sees none of them.
    """
    if principal.is_everywhere:
        return list(workers)
    found: list[WorkerInfo] = []
    for each in workers:
        queues = tuple(queue for queue in each.queues if principal.may("view", queue))
        if queues:
            found.append(replace(each, queues=queues, tasks=None, jobs=(), schedules=None))
    return found
