"""Jobs that a job makes: the fields that they inherit, and their ids, the same in every attempt. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final, Self

import msgspec

from jobledger.ledger.model.events import Order
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import Origin, child_id
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.seals import owner_of
from jobledger.ledger.model.subjects import JobRef

_ID_MAX: Final = 64  #: characters, as of every name in a subject
_ID_HEAD: Final = 31  #: characters of a longer id that stay before its hash


class Parent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job whose code makes others."""

    job_id: str
    worker: str  #: the worker that appends in its name
    trace: str = ""  #: W3C traceparent of its enqueuer
    tenant: str = ""
    correlation: str = ""  #: the first cause it belongs to; "": it is a first cause itself
    owner: str = ""  #: the owner of its data

    @classmethod
    def of(cls, job: Job, worker: str) -> Self:
        """Return the parent for jobs made by the code of an attempt."""
        order = job.order
        return cls(
            job_id=job.id,
            worker=worker,
            trace=job.trace,
            tenant=order.tenant,
            correlation=order.correlation,
            owner=owner_of(order.key),
        )


class Children:
    """The jobs made within one attempt."""

    def __init__(self, parent: Parent) -> None:
        self.parent = parent
        self._counts: Counter[str] = Counter()

    def next_id(self, task: str) -> str:
        """Return `<job id>-<task>-<n>`, n being 1 for the first job of this task that the attempt makes.

        If that is too long, a hash of the whole id replaces its end.
        """
        self._counts[task] += 1
        whole = f"{self.parent.job_id}-{task}-{self._counts[task]}"
        if len(whole) <= _ID_MAX:
            return whole
        digest = hashlib.sha256(whole.encode()).hexdigest()
        return f"{whole[:_ID_HEAD]}-{digest[: _ID_MAX - _ID_HEAD - 1]}"

    def inherit(self, order: Order) -> Order:
        """Return a child's order with those fields of its parent that it does not set; the trace comes with the stamp.

        Metadata and limits belong to one job, and are not inherited.
        """
        parent = self.parent
        return msgspec.structs.replace(
            order,
            tenant=order.tenant or parent.tenant,
            correlation=order.correlation or parent.correlation or parent.job_id,
        )


def child_ref(parent: JobRef, step: Step, item: int) -> JobRef:
    """Return the name of a run's child for an item of a step; if the end was copied, that of the source run's child."""
    assert step.order is not None, "only a group has children"
    for origin in step.origins:
        if any(first <= item <= last for first, last in origin.items):
            return child_ref(JobRef(queue=origin.queue, job_id=origin.job), asked_there(step, origin), item)
    queue, own_id = step.order.node(item).queue, step.order.node(item).id
    of_queue = parent.queue if step.order.tells_queue and queue != parent.queue else ""
    return JobRef(queue=queue, job_id=own_id or child_id(parent.job_id, step.number, item, of_queue=of_queue))


def child_id_of(run: JobRef, step: Step, item: int) -> str:
    """Return the id of a child of a step; for a copied step, the id of the child of the run that did the step."""
    copied = step.copied
    if copied is not None and copied.run:
        of_queue = run.queue if copied.tells_queue else ""
        return child_id(copied.run, copied.number, item, of_queue=of_queue)
    return child_ref(run, step, item).job_id


def asked_there(step: Step, origin: Origin) -> Step:
    """Return the step of the run from which the ends were copied, with the fields that make its children's names."""
    return msgspec.structs.replace(step, number=origin.number, sequence=origin.asked, origins=(), copied=None)
