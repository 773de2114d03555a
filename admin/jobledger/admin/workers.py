"""Who works: the processes that hold a lease at this moment, or gave theirs back a moment ago."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import datetime

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.nats.leases import WorkerInfo


async def list_workers(ledger: Ledger) -> list[WorkerInfo]:
    """Return the workers whose leases live and those that stopped within the last lease time, those of a host together.

    Raises: UnreachableError.
    """
    return sorted(await ledger.leases.all(), key=lambda info: (info.host, info.supervisor, info.worker))


class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    """Workers with the same code that began within a time, while other workers of their queues had other code."""

    at: datetime  #: when the first of them began
    workers: int
    hosts: tuple[str, ...]
    queues: tuple[str, ...]
    release: str  #: "" where `JOBLEDGER_RELEASE` names none
    version: str  #: the release of jobledger
    before: tuple[str, ...]  #: releases of the others
    new_tasks: tuple[str, ...]  #: tasks, and versions of workflows, that none of the others has
    gone_tasks: tuple[str, ...]  #: tasks and versions that only stopped workers had

    @property
    def words(self) -> str:
        """The differences, in words."""
        found = [f"release {self.release}" + (f" after {', '.join(self.before)}" if self.before else "")]
        found = found if self.release else []
        found += [f"new: {', '.join(self.new_tasks)}"] if self.new_tasks else []
        found += [f"gone: {', '.join(self.gone_tasks)}"] if self.gone_tasks else []
        return "; ".join(found) or "other schedules, limits or version of jobledger"


def deploys(found: Iterable[WorkerInfo], begin: datetime, end: datetime) -> list[Deploy]:
    """Return the deploys in a time, the newest first, as far as leases tell: those that live or just ended.

    A worker with a code that others of its queues had before is a restart. Where no lease from before is known, only a
    release makes a deploy.
    """
    workers = [each for each in found if each.kind == "worker"]
    older = [each for each in workers if each.started_at < begin]
    groups: dict[Hashable, list[WorkerInfo]] = {}
    for each in sorted(workers, key=lambda each: each.started_at):
        if begin <= each.started_at < end:
            groups.setdefault(_code(each), []).append(each)
    made: list[Deploy] = []
    for code, group in groups.items():
        queues = {queue for each in group for queue in each.queues}
        beside = [each for each in older if queues & {*each.queues}]
        if (beside and code not in {_code(each) for each in beside}) or (group[0].release and not beside):
            made.append(_deploy(group, beside, queues))
    return sorted(made, key=lambda each: each.at, reverse=True)


def _deploy(group: list[WorkerInfo], beside: list[WorkerInfo], queues: set[str]) -> Deploy:
    one = group[0]
    has, had = {*(one.tasks or ())}, {task for each in beside for task in each.tasks or ()}
    alive = {task for each in beside if not each.stopped for task in each.tasks or ()}
    return Deploy(
        at=one.started_at,
        workers=len(group),
        hosts=tuple(sorted({each.host for each in group})),
        queues=tuple(sorted(queues)),
        release=one.release,
        version=one.version,
        before=tuple(sorted({each.release for each in beside if each.release} - {one.release})),
        new_tasks=tuple(sorted(has - had)) if had else (),
        gone_tasks=tuple(sorted(had - has - alive)) if has else (),
    )


def _code(info: WorkerInfo) -> Hashable:
    """Return what a lease tells of a worker's code."""
    tasks = None if info.tasks is None else tuple(sorted(info.tasks))
    of_code = msgspec.json.encode((info.schedules, info.limits), order="sorted")
    return info.release, info.version, tasks, of_code
