"""Dead letters: by what killed them, and those of one cause one by one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, DeadLetterRow

_GROUPS: Final = 100
_ROWS: Final = 100

Text = Annotated[str, msgspec.Meta(max_length=200)]


class Query(When, frozen=True, kw_only=True):
    """Which dead letters."""

    queue: Text | None = None
    task: Text | None = None
    reason: Text | None = None
    fingerprint: Text | None = None

    def asked(self) -> list[tuple[str, str]]:
        """Return the filters as an address has them."""
        names = ("queue", "task", "reason", "fingerprint")
        return [(name, value) for name in names if (value := getattr(self, name))]


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    query: Query
    asked: list[tuple[str, str]]
    total: int
    groups: list[DeadLetterGroup]
    rows: list[DeadLetterRow]  #: the newest; only where one cause was chosen
    rows_max: int


async def dead_letters(looked: Looked, *, query: Query) -> DeadLetters:
    """Return the causes, those with most dead letters first."""
    past = query.as_of()
    chosen = DeadLetterFilter(
        queue=query.queue,
        task=query.task,
        reason=query.reason,
        fingerprint=query.fingerprint,
        visible_queues=looked.principal.queues,
        visible_tasks=looked.principal.tasks,
    )
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        with view.store.one_moment():
            return DeadLetters(
                shell=shell,
                query=query,
                asked=query.asked(),
                total=view.store.dead_letter_count(chosen),
                groups=view.store.dead_letter_groups(_GROUPS, chosen=chosen),
                rows=view.store.dead_letters(_ROWS, chosen=chosen) if query.fingerprint else [],
                rows_max=_ROWS,
            )
