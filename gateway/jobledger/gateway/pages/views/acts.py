"""Who did what to jobs, when and why."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobledger.gateway.pages.page import Looked, When, moment_of
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.projections.tables.acts import ActFilter, ActRow

ACTS_MAX: Final = 200

Text = Annotated[str, msgspec.Meta(max_length=200)]


class Query(When, frozen=True, kw_only=True):
    """Which acts."""

    by: Text | None = None
    since: Text | None = None

    def asked(self) -> list[tuple[str, str]]:
        """Return the filters as an address has them."""
        return [(name, value) for name in ("by", "since") if (value := getattr(self, name))]

    def chosen(self) -> ActFilter:
        """Return the filter. Raises: ProblemError."""
        if self.since is None:
            return ActFilter(by=self.by)
        return ActFilter(by=self.by, since=moment_of("since", self.since))


class Acts(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    query: Query
    asked: list[tuple[str, str]]
    acts: list[ActRow]
    total: int
    acts_max: int


async def acts(looked: Looked, *, query: Query) -> Acts:
    """Return the newest acts."""
    past, chosen = query.as_of(), query.chosen()
    async with looked.gateway.projection.opened(past) as view:
        found = view.store.acts(ACTS_MAX, chosen=chosen)
        seen = [each for each in found if looked.principal.may("view", each.queue, each.task)]
        return Acts(
            shell=await surround(looked, view, past),
            query=query,
            asked=query.asked(),
            acts=seen,
            total=view.store.act_count(chosen) if len(seen) == len(found) else len(seen),
            acts_max=ACTS_MAX,
        )
