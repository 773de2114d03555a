"""`jobledger queues drain`: pause a queue and wait until no job of it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.objects.fleet import queue_pause
from jobledger.admin.queues import RunningJobs, drained
from jobledger.cli import bulk
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import QueueNotDrainedError
from jobledger.cli.groups import QUEUES
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.cli.times import seconds, time_of
from jobledger.ledger import Ledger

_Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
_Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="End the pause at this time, or after a span such as 30m."),
]
_Interrupt = Annotated[
    bool,
    typer.Option("--interrupt", metavar="", help="Give running attempts back, too; they do not count."),
]
_WaitTimeout = Annotated[
    float,
    typer.Option(
        "--wait-timeout",
        metavar="SPAN",
        parser=seconds(0.1),
        help="Stop waiting after this long; the queue stays paused.",
    ),
]


@command(QUEUES, "drain", takes=ROWS)
async def drain(
    cli: Cli,
    *,
    queue: _Queue,
    until: _Until = None,
    reason: bulk.Why = "",
    interrupt: _Interrupt = False,
    wait_timeout: _WaitTimeout = 600.0,
) -> None:
    """Pause a queue unless it is paused, and wait until no job of it runs; it stays paused."""
    end = time_of("--until", until, ahead=True)
    async with cli.ledger() as ledger:
        state = await ledger.queue_state(queue)
        if end is not None or reason or interrupt or not state.is_paused(ledger.clock.now()):
            state = await ledger.pause_queue(
                queue, until=end, reason=reason, interrupt=interrupt, by=operator()
            )
        await _tell_unserved(cli.output, ledger, queue)

        def tell(running: RunningJobs) -> None:
            cli.output.note(f"queue {queue} is paused; {running.words()}")

        running = await drained(cli.rows(ledger), queue, limit_s=wait_timeout, on_change=tell)
    if running.jobs:
        raise QueueNotDrainedError(
            f"after {wait_timeout:g} s {running.words()}; queue {queue} stays paused: wait again with "
            f"`jobledger queues drain {queue}`, or give the jobs back with --interrupt"
        )
    if cli.output.as_json:
        cli.output.object(queue_pause(queue, state), running=0, lost=running.lost)
        return
    lost = (
        f"; {running.lost:,} of workers that are gone are taken over after `queues resume`"
        if running.lost
        else ""
    )
    cli.output.say(
        f"queue {queue} is drained: no job of it runs{lost}. `jobledger queues resume {queue}` ends the pause"
    )


async def _tell_unserved(output: Output, ledger: Ledger, queue: str) -> None:
    """Say that no worker serves a queue, so that its name may be wrong."""
    if not any(queue in info.queues for info in await ledger.leases.all() if not info.stopped):
        output.note(
            f"no worker serves queue {queue} at this moment; `jobledger workers list` shows those that are served"
        )
