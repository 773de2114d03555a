"""Records of jobs that a run, a graph or a batch makes later: their nodes, and their callbacks. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.limits.keys import KeySource, with_limits
from jobledger.ledger.model.errors import TaskDefinitionError
from jobledger.ledger.model.runs.orders import Callback, ChildNode
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.options import Options
from jobledger.ledger.templates import filled


def node_of(task: Kind, options: Options, **more: Any) -> ChildNode:
    """Return the `ChildNode` for a job of a task; `more`: fields of the node that `options` lacks."""
    return copied(
        ChildNode,
        options.order(),
        task=task.name,
        queue=options.queue,
        version=task.version,
        on_end=callbacks_of(task, options.tenant),
        deadline_s=task.deadline_s,
        **more,
    )


def callbacks_of(task: Kind, tenant: str) -> tuple[Callback, ...]:
    """Return the callbacks at the end of a workflow's run, () for any other task; `tenant`: the run's.

    Raises: InvalidInputError for a callback whose limits or owner take their key from the run's end, TaskDefinitionError
        for one without an argument.
    """
    found: list[Callback] = []
    for on, callback in task.callbacks:
        plain, options = callback.unpacked
        if not plain.signature.names:
            raise TaskDefinitionError(f"task {plain.name} as on_{on} of {task.name} takes no RunEnd")
        order, owner = options.order(), options.owner
        of_run = msgspec.structs.replace(order, tenant=options.tenant or tenant)
        job = KeySource(plain.name, options.queue, of_run, dict)
        if "{" in owner:
            owner = filled("owner", owner, job)
        if options.limits_in_code:
            order = with_limits(job, options.declared, options.declared_queue)
        found.append(
            copied(
                Callback,
                order,
                on=on,
                task=plain.name,
                queue=options.queue,
                argument=plain.signature.names[0],
                tenant=options.tenant,  # "": the run's tenant at its end
                version=plain.version,
                tells_queue=True,
                owner=owner,
            )
        )
    return tuple(found)
