"""`jobledger backup` and `jobledger restore`: an environment into a folder while work goes on, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import typer

from jobledger.admin.amounts import size
from jobledger.admin.backup import TakenBackup, back_up, check_files, find_backup, read_backup
from jobledger.admin.restore import Restore, check_place, plan_restore, verify_backup
from jobledger.admin.restore import restore as bring_back
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import LedgerNotSoundError, UsageError
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output
from jobledger.cli.session import operator, stoppable
from jobledger.cli.times import seconds
from jobledger.ledger.connection import connect_without_streams
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.nats.fleet_clock import FleetClock

_Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Where back-ups are kept, each in a folder named after its time."),
]
_Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        metavar="",
        help="Restore the back-up into a server of its own, on this machine, and check its ledger.",
    ),
]
_Every = Annotated[
    float | None,
    typer.Option(
        "--every", metavar="SPAN", parser=seconds(), help="Go on, a back-up each SPAN, until Ctrl-C."
    ),
]
_Keep = Annotated[
    int | None,
    typer.Option(
        "--keep", min=1, metavar="N", help="Then remove the oldest ones beyond N. (default: keep all)"
    ),
]


@command(TOP, "backup")
async def backup(
    cli: Cli, *, folder: _Folder, verify: _Verify = False, every: _Every = None, keep: _Keep = None
) -> None:
    """Write a back-up of the environment into DIR while work goes on.

    Exits with 4 if --verify finds that the ledger is not sound.
    """
    if every is None:
        await _back_up(cli, folder, verify=verify, keep=keep)
        return
    if every <= 0:
        raise UsageError("--every 0: give a time span such as 1h")
    async with stoppable():
        due = anyio.current_time()
        while True:
            try:
                await _back_up(cli, folder, verify=verify, keep=keep)
            except LedgerNotSoundError:
                raise
            except (LedgerError, OSError) as error:  # the next one may find the server or room
                cli.output.note(f"no back-up was written into {folder}: {error}")
            while due <= anyio.current_time():
                due += every
            await anyio.sleep_until(due)


async def _back_up(cli: Cli, folder: Path, *, verify: bool, keep: int | None) -> None:
    """Write one back-up, and report it in a line. Raises: LedgerNotSoundError, and as `back_up`."""
    output = cli.output
    async with cli.ledger() as ledger:
        with output.progress("writing the back-up") as progress:
            taken = await back_up(ledger, folder, keep=keep, on_progress=progress)
    for name in taken.unfinished:
        output.note(f"{folder / name} was not finished and is removed")
    problem = await _problem_of(output, taken) if verify else None
    with output.telling():
        _tell(output, taken, verdict=None if not verify else problem is None)
    if problem is not None:
        raise LedgerNotSoundError(f"the ledger in {taken.folder} is not sound: {problem}")


async def _problem_of(output: Output, taken: TakenBackup) -> str | None:
    """Return the problem of a back-up's ledger, None if it is sound."""
    with output.progress("checking the back-up") as progress:
        report = await verify_backup(Path(taken.folder), taken.backup, on_progress=progress)
    if report.sound:
        return None
    return report.violations[0].sentence if report.violations else "see `jobledger audit verify`"


def _tell(output: Output, taken: TakenBackup, *, verdict: bool | None) -> None:
    found = taken.backup
    if output.as_json:
        output.object(
            {
                "folder": taken.folder,
                "through": found.through,
                "head_hash": found.head_hash,
                "bytes": found.bytes,
                "streams": len(found.streams),
                "sound": verdict,
                "unfinished": taken.unfinished,
                "removed": taken.removed,
            }
        )
        return
    checked = {None: "", True: "; restored on a server of its own, it is sound", False: "; NOT sound"}[
        verdict
    ]
    gone = f"; removed {', '.join(taken.removed)}" if taken.removed else ""
    output.say(
        f"{taken.folder}: up to stream sequence {found.through:,}, {len(found.streams)} streams, "
        f"{size(found.bytes)}{checked}{gone}"
    )


_Source = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The folder of a back-up, or one with several: then the newest is taken."
    ),
]
_Paused = Annotated[
    bool,
    typer.Option("--paused", metavar="", help="Pause every queue that had a job before any work can begin."),
]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would be restored, and change nothing.")
]
_Again = Annotated[
    bool,
    typer.Option(
        "--again", metavar="", help="Remove what a restore that was not finished left, and begin again."
    ),
]
_Lost = Annotated[
    int | None,
    typer.Option(
        "--lost-through",
        min=1,
        metavar="SEQ",
        help="The last stream sequence of the lost ledger, where you know it; it is recorded.",
    ),
]


@command(TOP, "restore")
async def restore(
    cli: Cli,
    *,
    folder: _Source,
    paused: _Paused = False,
    plan: _Plan = False,
    again: _Again = False,
    lost_through: _Lost = None,
) -> None:
    """Bring a back-up back into a server that has none of its streams; the ledger records it."""
    place = find_backup(folder)
    found = read_backup(place)
    clock = FleetClock()
    async with connect_without_streams(cli.target.url, clock=clock, **cli.target.words()) as ledger:
        if plan:
            await anyio.to_thread.run_sync(check_files, place, found)
            await check_place(ledger, found, again=again)
            done = plan_restore(place, found)
        else:
            with cli.output.progress("restoring") as progress:
                done = await bring_back(
                    ledger,
                    place,
                    found,
                    by=operator(),
                    paused=paused,
                    again=again,
                    lost_through=lost_through,
                    on_progress=progress,
                )
    _tell_restored(cli.output, done)


def _tell_restored(output: Output, done: Restore) -> None:
    if output.as_json:
        output.object(done)
        return
    if done.sequence is None:
        output.say(f"back-up {done.backup} of {shown_time(done.at)} would be restored:")
        rows = [(each.stream, each.messages, size(each.bytes)) for each in done.streams]
        output.table(("stream", "messages>", "file>"), rows)
        return
    output.say(
        f"restored back-up {done.backup} of {shown_time(done.at)}, up to stream sequence {done.through:,}; "
        f"recorded at {done.sequence:,}",
        style="bold green",
    )
    output.say(f"{_jobs(done)} at the back-up's moment: those run again, these go on waiting")
    if done.paused:
        output.say(f"paused: {', '.join(done.paused)}; let them go on with `jobledger queues resume QUEUE`")


def _jobs(done: Restore) -> str:
    running = "1 job was running" if done.running == 1 else f"{done.running:,} jobs were running"
    waiting = "1 was waiting" if done.waiting == 1 else f"{done.waiting:,} were waiting"
    return f"{running} and {waiting}"
