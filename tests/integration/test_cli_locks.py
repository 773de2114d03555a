"""`jobledger locks list` and `show`: held locks, their holders, and what was given back."""

from __future__ import annotations

from tests.support.command_line import CommandLine

from jobledger.admin.objects.locks import list_locks, lock_state
from jobledger.audit.verify import Report, verify
from jobledger.ledger import Ledger
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.lock import LOCK, Acquire, decide
from jobledger.ledger.model.subjects import LockRef

REF = LockRef(scope="account", lock_id="42")


async def abandon(ledger: Ledger) -> None:
    """Take the lock as a process that is gone."""
    view = LOCK.view(await ledger.log.last(LOCK.chain(ledger.names, REF.scope, REF.lock_id)))
    stamp = Stamp(at=ledger.clock.now(), by="shop-1-abc")
    event = decide(REF, view.state, Acquire(holder="shop-1-abc", lease_s=15.0), stamp)
    await ledger.log.append(LOCK.link(ledger.names, [event], view))


async def verify_log(ledger: Ledger) -> Report:
    return await verify(ledger.log)


def test_locks_are_listed_while_they_are_held(cli: CommandLine) -> None:
    seen: list[int] = []

    async def hold(ledger: Ledger) -> None:
        async with ledger.lock("account", "42") as held:
            seen.append(held.fencing_number)
            (one,) = await list_locks(ledger, limit=5)
            assert (one.lock, one.is_alive, one.fencing_number) == ("42", True, held.fencing_number)
            state = await lock_state(ledger, "account", "42")
            assert (state.held, state.is_alive, state.holder) == (True, True, one.holder)

    assert "no lock is held" in cli.run("locks", "list", *cli.where).out
    never = cli.run("locks", "show", "account", "42", *cli.where)
    assert (never.code, "free" in never.out, "nobody ever took it" in never.out) == (0, True, True)
    cli.with_ledger(hold)
    free = cli.run("locks", "show", "account", "42", "--json", *cli.where).lines[0]
    assert (free["held"], free["holder"], free["fencing_number"]) == (False, "", seen[0])
    cli.with_ledger(abandon)
    (held,) = cli.run("locks", "list", "--json", *cli.where).lines
    assert (held["scope"], held["lock"], held["is_alive"]) == ("account", "42", False)
    assert "(gone)" in cli.run("locks", "list", *cli.where).out
    shown = cli.run("locks", "show", "account", "42", *cli.where).out
    assert "held" in shown
    assert "gone: the lock is free" in shown.replace("\n", " ")
    assert cli.with_ledger(verify_log).violations == ()
    assert cli.run("locks", "show", "a b", "42", *cli.where).code != 0
