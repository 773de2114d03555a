"""What of a tree of jobs somebody may see. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from jobledger.admin.runs import Tree, TreeStep
from jobledger.gateway.access.permissions import Principal


def tree_for(principal: Principal, tree: Tree) -> Tree:
    """Return a tree without the jobs that the asker may not see, which count as hidden. The root is always in it."""
    return replace(tree, steps=tuple(_step_for(principal, step) for step in tree.steps))


def _step_for(principal: Principal, step: TreeStep) -> TreeStep:
    seen = [each for each in step.children if principal.may("view", each.queue, each.task)]
    gone = len(step.children) - len(seen)
    children = tuple(tree_for(principal, each) for each in seen)
    return TreeStep(step=step.step, children=children, hidden=step.hidden + gone)
