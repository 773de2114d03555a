"""`jobledger audit trail`: tell what happened to one job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.text import Text

from jobledger.admin.archived import payload_places
from jobledger.admin.find import Chain, find_chain
from jobledger.admin.objects.jobs import chain_shown, trail_shown
from jobledger.admin.past import events_until, moment_words
from jobledger.audit.clocks import clocks_of
from jobledger.audit.trail import Line, lines_of_chain, trail_of
from jobledger.audit.trail_words import span
from jobledger.audit.verify.links import ChainCheck
from jobledger.audit.verify.payloads import NO_STATES, States, states_of
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.one_job import found_history, moment_of_found, newest, refuse_broken
from jobledger.cli.output import Output
from jobledger.cli.past import asked
from jobledger.cli.text import clock_time, day, plain
from jobledger.ledger.model.codec import StoredEvent

TrailOf = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The job's id, or a prefix that only one job has; or lock/SCOPE/ID or reactor/NAME for one of those.",
    ),
]


_COMMAND: Final = "jobledger audit trail"


@command(AUDIT, "trail", takes=ROWS)
async def trail(
    cli: Cli,
    *,
    job_id: TrailOf,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: options.Archives = None,
) -> None:
    """Show what happened to one job: who did what and when, what it waited for and how long, which error."""
    past = asked(at, sequence)
    if "/" in job_id:
        if past is not None:
            raise UsageError("--at and --sequence are about a job: leave them out")
        async with cli.ledger() as ledger:
            found_chain = await find_chain(ledger, job_id, archives or ())
        _show_chain(cli.output, found_chain)
        refuse_broken(found_chain.check, found_chain.label)
        return
    async with found_history(cli, job_id, queue, archives, _COMMAND) as found:
        then = await moment_of_found(found, past, job_id, _COMMAND) if past is not None else None
        events = newest(found.history if then is None else events_until(found.history, then), cli.output)
        now = found.ledger.clock.now()
        states = await states_of(payload_places(found.ledger, found.log), events)
    if then is not None:
        cli.output.say(moment_words(then), style="dim")
        now = then.at or events[-1].stored_at
    show_trail(cli.output, events, now, found.chain, states)
    if found.missing:
        cli.output.note(found.missing)
    refuse_broken(found.chain, f"job {events[0].event.job}")


def _show_chain(output: Output, chain: Chain) -> None:
    clocks = clocks_of(chain.messages)
    lines = lines_of_chain(chain.messages, clocks)
    if output.as_json:
        output.object(chain_shown(chain.label, lines, clocks, chain.check))
        return
    output.say(chain.label, style="bold")
    output.say(clocks.text(), style="dim")
    _show_lines(output, lines)
    output.say()
    _show_check(output, chain.check)


def show_trail(
    output: Output,
    history: Sequence[StoredEvent],
    now: datetime,
    check: ChainCheck,
    states: States = NO_STATES,
) -> None:
    """Print the trail of a job's events."""
    told, event = trail_of(history, now=now, states=states), history[0].event
    if output.as_json:
        output.object(trail_shown(history, told, check))
        return
    output.say(f"job {event.job}", style="bold")
    output.say(f"task {event.task} in queue {event.queue}; {told.clocks.text()}", style="dim")
    _show_lines(output, told.lines)
    output.say()
    output.say(told.summary.text(), style="bold")
    _show_check(output, check)


def _show_check(output: Output, check: ChainCheck) -> None:
    output.say(check.text(), style="" if check.is_unbroken else "bold red")


def _show_lines(output: Output, lines: Iterable[Line]) -> None:
    shown = ""
    for line in lines:
        if day(line.at) != shown:
            shown = day(line.at)
            output.say()
            output.say(shown, style="dim")
        output.hanging(_line_head(line), Text(plain(line.text())))


def _line_head(line: Line) -> Text:
    since = "" if line.since_s is None else f"+{span(line.since_s)}"
    return Text(f"{line.stream_sequence:>6} {clock_time(line.at)} {since:>11}  ", style="dim")
