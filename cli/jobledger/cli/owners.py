"""`jobledger erase`, and acts on keys and files of this machine; other commands on owners are verbs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from jobledger.admin.erasure import SETTLE_S, Erasure, keys_of
from jobledger.admin.owner_export import export_owner
from jobledger.admin.owner_keys_file import bring_keys, keep_keys
from jobledger.admin.verbs.kit import Place, operator_principal
from jobledger.admin.verbs.owners import EraseOwner
from jobledger.cli.command import LEDGER, ROWS, Cli, command
from jobledger.cli.groups import MASTER, OWNERS, TOP
from jobledger.cli.session import operator, stoppable
from jobledger.cli.times import seconds
from jobledger.cli.verbs import tell_answer
from jobledger.ledger.model.owner import GRACE_S, GRACE_S_MAX
from jobledger.ledger.model.times import shown_time

_Owner = Annotated[str, typer.Argument(metavar="OWNER", help="Whose data: kind:id, as person:17.")]
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files.")]
_NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]
_KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="What `owners backup` wrote.")]
_Master = Annotated[str, typer.Argument(metavar="NAME", help="The master key, as `owners show` names it.")]
_Request = Annotated[
    str,
    typer.Option(
        "--request", metavar="TEXT", help="What asked for it: the number of a letter or of a ticket."
    ),
]
_Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SPAN",
        parser=seconds(maximum=GRACE_S_MAX),
        help="Time for what cancelled jobs undo, which needs their inputs. (default: 5m)",
        show_default=False,
    ),
]
_Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger with who acted.")
]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")
]
_NoWait = Annotated[
    bool, typer.Option("--no-wait", metavar="", help="Do what can be done now, and say when to go on.")
]
#: How much later than announced a step may be due, by the server's clock.
_LATE: Final = timedelta(seconds=60)


@command(TOP, "erase", takes=ROWS)
async def erase(
    cli: Cli,
    *,
    owner: _Owner,
    request: _Request = "",
    grace: _Grace = GRACE_S,
    reason: _Reason = "",
    plan: _Plan = False,
    no_wait: _NoWait = False,
) -> None:
    """Destroy the key of an owner, so that nobody can read what was sealed under it, wherever a copy is.

    First nothing new of the owner begins, open jobs are cancelled, and dead letters are discarded. The same command
    continues an interrupted erasure.
    """
    wish = EraseOwner(owner=owner, request=request, grace_s=grace, reason=reason, plan=plan)
    async with stoppable(), cli.ledger() as ledger:
        place = Place(ledger, cli.rows(ledger), operator_principal(operator()))
        found = await wish.perform(place)
        ends_at = ledger.clock.now() + timedelta(seconds=GRACE_S_MAX + SETTLE_S) + _LATE
        while found.next_at is not None and not no_wait:
            assert ledger.clock.now() < ends_at, "each step has its time"
            _tell_of_wait(cli, found)
            await anyio.sleep(max(0.1, (found.next_at - ledger.clock.now()).total_seconds()))
            found = await wish.perform(place)
        now = ledger.clock.now()
    tell_answer(cli.output, wish, found, now)


def _tell_of_wait(cli: Cli, found: Erasure) -> None:
    assert found.next_at is not None, "an erasure that is not done goes on at some time"
    if found.destroyed_at is None:
        what = f"{found.living:,} jobs have not ended; key {found.key} is destroyed"
    else:
        what = f"key {found.key} is destroyed; nobody has it in memory any more"
    cli.output.note(
        f"{what} at {shown_time(found.next_at)}; if this is interrupted, run the same command again"
    )


@command(OWNERS, "export", takes=ROWS)
async def export(cli: Cli, *, owner: _Owner, folder: _Folder) -> None:
    """Write all that the ledger holds of an owner into files, unsealed: give it to who asks for their data.

    It needs the master key. Data in an archive or in another system is not included.
    """
    async with stoppable(), cli.ledger() as ledger:
        found = await export_owner(ledger, cli.rows(ledger), owner, folder)
    if cli.output.as_json:
        cli.output.object(found)
        return
    cli.output.say(f"{found.events:,} events of {found.jobs:,} jobs of owner {owner} are in {folder}")
    if found.missing:
        cli.output.note(f"{found.missing:,} values could not be read: each file says which, and why")


@command(OWNERS, "backup", takes=LEDGER)
async def backup(cli: Cli, *, file: _NewFile) -> None:
    """Write the keys of owners, each wrapped by its master key, into a file; `jobledger backup` leaves them out.

    Keep it apart from back-ups of the ledger, and not for long: a person with an old file and its master key can read
    data that was erased since.
    """
    async with stoppable(), cli.ledger() as ledger:
        count = await keep_keys(ledger, file)
    if cli.output.as_json:
        cli.output.object({"owners": count, "file": str(file)})
    else:
        cli.output.say(f"the keys of {count:,} owners are in {file}")


@command(OWNERS, "restore", takes=LEDGER)
async def restore(cli: Cli, *, file: _KeysFile) -> None:
    """Restore the keys of owners who have none here; run it after `jobledger restore`.

    A key that the ledger records as erased stays destroyed. It is safe to run this twice.
    """
    async with stoppable(), cli.ledger() as ledger:
        found = await bring_keys(ledger, file)
    if cli.output.as_json:
        cli.output.object(found)
        return
    gone = f"; {found.erased:,} of them were erased since, and stay so" if found.erased else ""
    cli.output.say(f"{found.brought:,} of {found.owners:,} owners have their keys again{gone}")
    if found.unchanged:
        cli.output.note(f"{found.unchanged:,} owners were passed over: their keys are here as in the file")
    for sentence in found.passed_over:
        cli.output.note(sentence)


@command(MASTER, "rotate", takes=LEDGER)
async def rotate(cli: Cli) -> None:
    """Wrap the keys of all owners with the first master key of JOBLEDGER_MASTER_KEY; it needs the others, too.

    Every process must have the new key before. Run the command again after an interruption.
    """
    async with stoppable(), cli.ledger() as ledger:
        done = await keys_of(ledger).rewrap(lambda count: cli.output.note(f"looked at {count:,} owners"))
    if cli.output.as_json:
        cli.output.object({"master": done.master, "changed": done.changed})
    else:
        cli.output.say(f"{done.changed:,} keys are wrapped by {done.master} now")


@command(MASTER, "forget", takes=LEDGER)
async def forget(cli: Cli, *, name: _Master) -> None:
    """Delete from the server's disk what an old master key wrapped, and prove that no key needs it any more.

    Then destroy every copy of that master key: older copies of the bucket of keys are then of no use to anybody.
    """
    async with stoppable(), cli.ledger() as ledger:
        owners = await keys_of(ledger).forget_master(name)
    if cli.output.as_json:
        cli.output.object({"master": name, "owners": owners})
    else:
        cli.output.say(
            f"no key needs {name} any more; it wrapped keys of {owners:,} owners: destroy it wherever it is, and old copies "
            "of the bucket of keys cannot be opened"
        )
