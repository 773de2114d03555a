"""Runs: those that wait and for what, the newest ones, and the workflows that they are runs of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import View
from jobledger.admin.runs import dead_children
from jobledger.admin.workflows.listing import Listed
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.scoped import workflows_for

_SHOWN: Final = 40
#: How many of the newest jobs are looked at for runs among them.
LOOKED_AT: Final = 20_000
_COLUMNS: Final = "queue, id, task, version, status, awaiting, created_at, updated_at, error_type"
_WAITING: Final = f"SELECT {_COLUMNS} FROM jobs WHERE awaiting IS NOT NULL AND status = 'paused' ORDER BY updated_at DESC LIMIT ?"  # noqa: S608 - columns
_NEWEST: Final = (
    f"SELECT {_COLUMNS} FROM (SELECT {_COLUMNS} FROM jobs ORDER BY created_at DESC LIMIT {LOOKED_AT}) AS j "  # noqa: S608
    "WHERE EXISTS (SELECT 1 FROM steps WHERE steps.job_id = j.id AND steps.queue = j.queue) LIMIT ?"
)


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are ISO-8601 text in UTC."""

    queue: str
    id: str
    task: str
    version: str | None
    status: str
    awaiting: str | None  #: what it waits for, in a few words
    created_at: str
    updated_at: str
    error_type: str | None


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    waiting: list[RunLine]
    newest: list[RunLine]
    looked_at: int
    workflows: list[Listed]


async def runs(looked: Looked, *, query: When) -> Runs:
    """Return runs as they are, or as of a past moment; which code workers had then is not known."""
    past = query.as_of()
    workflows = [] if past is not None else await workflows_for(looked.principal, looked.gateway.rows)
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        waiting, newest = await anyio.to_thread.run_sync(_found, looked, view)
    return Runs(
        shell=shell,
        waiting=waiting,
        newest=newest,
        looked_at=LOOKED_AT,
        workflows=workflows,
    )


def _found(looked: Looked, view: View) -> tuple[list[RunLine], list[RunLine]]:
    with view.store.one_moment():
        waiting, newest = (view.store.select(sql, (_SHOWN,)) for sql in (_WAITING, _NEWEST))
        dead = {(each.queue, each.run): each.count for each in dead_children(view.store)}
    return _lines(looked, waiting, dead), _lines(looked, newest, dead)


def _lines(
    looked: Looked, rows: Sequence[Sequence[Any]], dead: Mapping[tuple[str, str], int]
) -> list[RunLine]:
    found = [RunLine(**dict(zip(RunLine.__struct_fields__, row, strict=True))) for row in rows]
    seen = [each for each in found if looked.principal.may("view", each.queue, each.task)]
    return [_for_person(each, dead.get((each.queue, each.id), 0)) for each in seen]


def _for_person(line: RunLine, dead: int) -> RunLine:
    """Say of a run that a person lets it go on; `dead`: how many dead letters it waits for."""
    if not dead:
        return line
    letters = "dead letter" if dead == 1 else "dead letters"
    return msgspec.structs.replace(line, awaiting=f"a person: {dead:,} {letters} among its {line.awaiting}")
