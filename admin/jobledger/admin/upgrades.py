"""Upgrades: which process runs which release, and the end of an upgrade, after which earlier releases cannot read on.

Until then a new release appends only what the releases beside it read, so one may go back to them. Source: ADR 057.
"""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.reactor import FORM_CHAIN, REACTOR, FormRaised
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.leases import LeaseKind
from jobledger.ledger.nats.streams import raise_form, require_changes

_NAMED_MAX: Final = 5  #: the most processes named in a sentence


class ProcessRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A process that lives, and what it says of its release."""

    process: str  #: its identity, as in `jobledger workers list`
    kind: LeaseKind
    reader: str  #: the kind of a client that reads for long, such as `projector`; "" for all others
    version: str  #: the release of jobledger
    release: str  #: release of its tasks' code, by `JOBLEDGER_RELEASE`; "": not set
    reads: int  #: the highest form that it reads


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """How far the upgrade of a ledger is."""

    version: str  #: the release of the program that looked
    form: int  #: up to which form events are appended
    newest: int  #: the highest form that this program reads
    processes: tuple[ProcessRelease, ...]  #: by name

    @property
    def behind(self) -> tuple[ProcessRelease, ...]:
        """Those that would not read what is appended after the end of the upgrade."""
        return tuple(each for each in self.processes if each.reads < self.newest)


class FinishedUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger whose upgrade is finished."""

    form: int
    before: int  #: the form that it had; the same as `form` if there was nothing to do
    behind: int  #: living processes that do not read this form


async def look_at_upgrade(ledger: Ledger) -> Upgrade:
    """Return which living process runs which release, of those that hold a lease: workers, readers, and holders of locks.

    Raises: UnreachableError, LedgerNotFoundError.
    """
    head = await ledger.log.head()
    living = [info for info in await ledger.leases.all(clients=True) if not info.stopped]
    return Upgrade(
        version=VERSION,
        form=head.form,
        newest=FORM,
        processes=tuple(
            ProcessRelease(
                process=info.worker,
                kind=info.kind,
                reader=info.reader,
                version=info.version,
                release=info.release,
                reads=info.reads,
            )
            for info in living
        ),
    )


async def finish_upgrade(
    ledger: Ledger, *, reason: str, force: bool = False, by: str = ""
) -> FinishedUpgrade:
    """Let events of this program's highest form be appended; earlier releases stop reading there, and none can go back.

    The event comes before the setting: so every event of the new form comes after the one at which old readers stop.
    After a crash in between a repeated call goes on.

    Raises: RefusedError while a living process cannot read this form, unless `force`, and if the ledger's form is
        higher; PermissionRefusedError for a user of the server who may not change the ledger's settings;
        UnreachableError, LedgerFullError.
    """
    found = await look_at_upgrade(ledger)
    if found.form > FORM:
        raise RefusedError(
            f"the ledger has form {found.form}, and jobledger {VERSION} reads up to {FORM}: a newer release finished its "
            f"upgrade; install a jobledger that reads form {found.form}"
        )
    if found.form == FORM:
        return FinishedUpgrade(form=found.form, before=found.form, behind=len(found.behind))
    if found.behind and not force:
        named = ", ".join(f"{each.process} ({each.version or '?'})" for each in found.behind[:_NAMED_MAX])
        more = len(found.behind) - _NAMED_MAX
        raise RefusedError(
            f"{named}{f' and {more} more' if more > 0 else ''} cannot read form {FORM}: stop them or bring them to "
            f"{VERSION} first; `jobledger upgrade show` lists every process"
        )
    # A gateway with only its role's rights could append the event, which stops earlier readers, but not raise the form.
    await require_changes(ledger.inbox, ledger.names.ledger_stream)
    await _record(ledger, found, reason=reason, by=by)
    await raise_form(ledger.inbox, ledger.names.ledger_stream, FORM)
    await ledger.learn_form()
    return FinishedUpgrade(form=FORM, before=found.form, behind=len(found.behind))


async def keep_form(ledger: Ledger) -> None:
    """Raise the form once more where an upgrade was finished while other settings of the ledger were changed.

    Call it after such a change: the server takes no condition for it, so an earlier form may have been written back.

    Raises: as `raise_form`, UnreachableError.
    """
    newest = await end_of_chain(ledger.log, REACTOR.chain(ledger.names, FORM_CHAIN))
    told = None if newest.event is None else REACTOR.decode(newest.event)
    if isinstance(told, FormRaised):
        await raise_form(ledger.inbox, ledger.names.ledger_stream, told.form)


async def _record(ledger: Ledger, found: Upgrade, *, reason: str, by: str) -> None:
    """Append `raised`, unless an earlier try has."""

    async def attempt() -> None:
        newest = await end_of_chain(ledger.log, REACTOR.chain(ledger.names, FORM_CHAIN))
        if newest.event is not None:
            told = REACTOR.decode(newest.event)
            if isinstance(told, FormRaised) and told.form >= FORM:
                return
        stamp = ledger.stamp(by)
        event = FormRaised(
            reactor=FORM_CHAIN,
            at=stamp.at,
            by=stamp.by,
            form=FORM,
            before=found.form,
            behind=len(found.behind),
            reason=reason,
        )
        entries = REACTOR.link(ledger.names, [event], REACTOR.view(newest.event, newest.last_sequence))
        await ledger.log.append(entries)

    await retry_raced(attempt)
