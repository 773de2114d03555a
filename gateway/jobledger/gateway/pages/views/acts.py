"""Acts on jobs: who did what, when and why."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobledger.gateway.pages.page import Viewer, When, moment_of
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.ledger.model.rights.authority import Principal
from jobledger.projections.tables.acts import ActFilter, ActGroup

ACTS_MAX: Final = 200

Text = Annotated[str, msgspec.Meta(max_length=200)]


class Query(When, frozen=True, kw_only=True):
    """The filter of acts."""

    by: Text | None = None
    since: Text | None = None
    each: Text | None = None  #: if not empty: show each job of an act on many jobs

    def asked(self) -> list[tuple[str, str]]:
        """Return the filters as parameters of an address."""
        return [(name, value) for name in ("by", "since", "each") if (value := getattr(self, name))]

    def chosen(self, principal: Principal) -> ActFilter:
        """Return the filter, limited to acts that the viewer may see. Raises: ProblemError."""
        return ActFilter(
            by=self.by,
            since=None if self.since is None else moment_of("since", self.since),
            visible_queues=principal.queues,
            visible_tasks=principal.tasks,
        )


class Acts(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    asked: list[tuple[str, str]]
    acts: list[ActGroup]
    shown: int  #: number of acts in these groups
    total: int


async def acts(looked: Viewer, *, query: Query) -> Acts:
    """Return the newest acts."""
    past, chosen = query.as_of(), query.chosen(looked.principal)
    async with opened(looked, past) as (view, shell):
        found = view.store.act_groups(ACTS_MAX, chosen=chosen, together=not query.each)
        return Acts(
            shell=shell,
            query=query,
            asked=query.asked(),
            acts=found.items,
            shown=found.acts,
            total=view.store.act_count(chosen),
        )
