"""`jobledger retention run`: move old events into the archive by the ledger's setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from jobledger.admin.amounts import size
from jobledger.admin.keeper import Keeper, clear_once, move_once
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.cli.command import ROWS, WAITS, Cli, command
from jobledger.cli.errors import REFUSED, UsageError
from jobledger.cli.groups import RETENTION
from jobledger.cli.logs import log_as_process
from jobledger.cli.output import Output
from jobledger.cli.session import stoppable, until_closed
from jobledger.workers.process import log_what_nobody_catches
from jobledger.workers.services import outlive

_Once = Annotated[
    bool,
    typer.Option(
        "--once", metavar="", help="Look once, move and delete what is to go, and end; as for cron."
    ),
]
_DefaultTo = Annotated[
    Path | None,
    typer.Option(
        "--default-to",
        metavar="DIR",
        help="Folder of the archive where the setting names none; made if missing.",
    ),
]


@command(RETENTION, "run", takes=(*ROWS, WAITS))
async def run(cli: Cli, *, once: _Once = False, default_to: _DefaultTo = None) -> int | None:
    """Be the keeper: look now and then, and move old events into the archive, until Ctrl-C.

    It also removes exports that are older than the setting keeps them, and large values that no event names any more.

    With --once it exits with 4 if events should have been moved and could not be.
    """
    log_as_process()
    if default_to is not None and not default_to.name:
        raise UsageError("--default-to is empty: name the folder of the archive")
    default = "" if default_to is None else str(default_to.absolute())
    code: int | None = None
    async with stoppable(), cli.ledger() as ledger, anyio.create_task_group() as group:
        log_what_nobody_catches(ledger.connection.loop)
        path = await cli.rows(ledger).path()

        async def work() -> MoveOutcome:
            return await move_once(ledger, path, default)

        group.start_soon(until_closed, ledger)

        async def clear() -> MoveOutcome:
            return await clear_once(ledger, default)

        if once:
            moved = await work()
            if not moved.trouble:
                moved = _with_values(moved, await clear())
            _tell(cli.output, moved)
            code = REFUSED if moved.trouble else None
        else:
            keeper = Keeper(ledger, work, clear=clear, default_to=default)
            await outlive(ledger.connection, "the keeper", keeper.run)
        group.cancel_scope.cancel()
    return code


def _with_values(moved: MoveOutcome, cleared: MoveOutcome) -> MoveOutcome:
    return msgspec.structs.replace(
        moved,
        values=cleared.values,
        values_bytes=cleared.values_bytes,
        forgotten=cleared.forgotten,
        forgotten_events=cleared.forgotten_events,
        held_back_by=cleared.held_back_by,
        trouble=cleared.trouble,
    )


def _tell(output: Output, moved: MoveOutcome) -> None:
    if output.as_json:
        output.object(moved)
        return
    if moved.events:
        output.say(
            f"moved {moved.events:,} events, {moved.jobs_archived:,} finished jobs; carried on {moved.jobs_carried:,}; the "
            f"ledger begins at stream sequence {moved.first_sequence:,}",
            style="bold green",
        )
    elif not moved.trouble:
        output.say("nothing is to be moved")
    if moved.forgotten:
        exports = "export" if len(moved.forgotten) == 1 else "exports"
        output.say(
            f"forgot {len(moved.forgotten):,} {exports} of the archive, with {moved.forgotten_events:,} events"
        )
    if moved.held_back_by:
        output.note(moved.held_back_by)
    if moved.values:
        output.say(
            f"deleted large values that no event names any more: {moved.values:,}, {size(moved.values_bytes)}"
        )
    if moved.trouble:
        output.note(moved.trouble)
