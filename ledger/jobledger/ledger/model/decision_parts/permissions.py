"""The permission that a principal needs for each command on a job. Pure.

Only workers and reactors may give a command that is not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jobledger.ledger.model.commands import (
    CancelJob,
    Command,
    Discard,
    Dispatch,
    Enqueue,
    GiveSignal,
    Note,
    RequestPause,
    Requeue,
    Reschedule,
    ResumeJob,
)
from jobledger.ledger.model.errors import AccessDeniedError, JobNotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.definition import Definition
from jobledger.ledger.model.reserved_ids import check_unreserved
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import INNER_TASKS, check_users_queue, check_users_task, is_own_queue

NEEDED: Final[Mapping[type, Permission]] = {
    Enqueue: "queue",
    GiveSignal: "queue",
    CancelJob: "cancel",
    Dispatch: "cancel",
    Reschedule: "cancel",
    RequestPause: "cancel",
    ResumeJob: "cancel",
    Requeue: "review",
    Discard: "review",
    Note: "review",
}
#: One more attempt of an unchanged dead letter: the command of `retry`.
_ONCE_MORE: Final = Requeue()


def permit(principal: Principal, job: Job | None, command: Command) -> None:
    """Refuse a command that the principal may not give.

    The ledger's own jobs are begun with an operator's rights, by code that checked the rights to their parts one by
    one.

    Raises: JobNotFoundError for a job that the principal may not see; AccessDeniedError; InvalidInputError for a job
    of the ledger's own, and for an id in a form that is reserved for derived ids.
    """
    needed = NEEDED.get(type(command))
    if needed is None:
        raise AccessDeniedError(
            f"{principal.name} is no worker: only workers may {type(command).__name__} a job"
        )
    if isinstance(command, Enqueue):
        _permit_to_begin(principal, command)
        return
    if job is None:
        return  # without a job `decide` refuses the command anyway
    if isinstance(command, Requeue):
        if _is_once_more(command) and principal.may("cancel"):
            needed = "cancel"
        if command.input != _ONCE_MORE.input or command.input_ref is not None:
            principal.require_about("queue", job.queue, job.task, JobNotFoundError(job.id))
    principal.require_about(needed, job.queue, job.task, JobNotFoundError(job.id))


def _permit_to_begin(principal: Principal, command: Enqueue) -> None:
    queue, task, order = command.ref.queue, command.task, command.order
    if (
        order.rerun_of is not None
    ):  # children of an existing run; also runs of graphs and batches, which people begin
        principal.require("review", queue if queue == BUILT_IN_QUEUE else check_users_queue(queue), task)
    else:
        if task in INNER_TASKS or is_own_queue(queue):
            check_users_task(task)
            check_users_queue(queue)
        principal.require("queue", queue, task)
    if order.member is None:  # only a batch sets it, for its own jobs
        check_unreserved(command.ref.job_id, principal.keyed)


def permit_limit(
    principal: Principal | None,
    limit: str,
    definition: Definition | None,
    job: tuple[str, str],
    *,
    is_own: bool,
) -> None:
    """Refuse a limit that a job may not name; the refusal does not show who holds it.

    The patterns of a definition apply to everybody. Where it has none, a principal that is bound to queues or tasks may
    not name it: the job would take slots from others, and might end their jobs by the limit's mode. `job`: queue and
    task; `is_own`: whether the task's code has the limit; `principal`: None for an operator.

    Raises: AccessDeniedError.
    """
    queue, task = job
    terms = None if definition is None else definition.common
    if terms is not None and terms.says_who:
        if not terms.is_for(queue, task):
            raise AccessDeniedError(
                f"jobs of task {task} in queue {queue} may not name limit {limit}: leave out limit {limit}, or have whoever "
                "sets it name that queue and that task"
            )
    elif not (principal is None or principal.is_everywhere or is_own):
        raise AccessDeniedError(
            f"{principal.name} is bound to some queues or tasks, so its jobs have the limits of their task's code and "
            f"those that are set for their queue and task: leave out limit {limit}, or have the task name it"
        )


def _is_once_more(command: Requeue) -> bool:
    return command == Requeue(reason=command.reason)
