"""Upgrade verbs: see which process runs which release, and finish an upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from jobledger.admin.upgrades import FinishedUpgrade, Upgrade, finish_upgrade, look_at_upgrade
from jobledger.admin.verbs.kit import Place, Reason, Table, Told, Verb, option, verb


@verb(
    "upgrade show",
    "GET /v1/upgrade",
    permission="view",
    summary="Show which process runs which release",
)
class ShowUpgrade(Verb[Upgrade], frozen=True, kw_only=True):
    """Show the ledger's form, and the release and readable forms of each process that holds a lease."""

    async def do(self, place: Place) -> Upgrade:
        """Look. Raises: as `look_at_upgrade`."""
        return await look_at_upgrade(place.ledger)

    def say(self, found: Upgrade) -> Iterator[Told]:
        """Say what the ledger has, who runs what, and what is to be done next."""
        yield f"the ledger has form {found.form}; jobledger {found.version} reads up to {found.newest}"
        if found.processes:
            yield Table(
                ("process", "kind", "version", "reads>", "release"),
                [
                    (each.process, each.reader or each.kind, each.version or "?", each.reads, each.release)
                    for each in found.processes
                ],
            )
        yield _next_step(found)


def _next_step(found: Upgrade) -> str:
    if found.form > found.newest:
        return f"this program is too old for the ledger: install a jobledger that reads form {found.form}"
    if found.form == found.newest:
        return "nothing is left to do"
    if found.behind:
        count = f"{len(found.behind)} of {len(found.processes)}"
        return f"{count} must be brought to {found.version} or end before `jobledger upgrade finish`"
    return (
        "every process here reads the newer form: when those without a lease do too, and you will not go back, run "
        "`jobledger upgrade finish`"
    )


@verb(
    "upgrade finish",
    "POST /v1/upgrade/finish",
    permission="admin",
    summary="Let events of the newest form be appended",
    problems=("REFUSED", "LEDGER_FULL", "LEDGER_BUSY"),
)
class FinishUpgrade(Verb[FinishedUpgrade], frozen=True, kw_only=True):
    """Let events of the newest form be appended. Earlier releases stop reading there: nobody can go back to them.

    Refused while a living process cannot read that form.
    """

    force: Annotated[bool, option("Also while a living process reads less: it stops working.")] = False
    reason: Reason = ""

    async def do(self, place: Place) -> FinishedUpgrade:
        """Finish it. Raises: as `finish_upgrade`."""
        return await finish_upgrade(place.ledger, reason=self.reason, force=self.force, by=place.by)

    def say(self, found: FinishedUpgrade) -> Iterator[Told]:
        """Say which form the ledger has."""
        if found.before == found.form:
            yield f"the ledger has form {found.form} already"
        else:
            yield f"the ledger has form {found.form} now (before: {found.before})"
