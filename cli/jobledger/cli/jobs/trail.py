"""`jobledger jobs show --trail`: who did what to a job and when, what it waited for and how long, which error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial

from rich.text import Text

from jobledger.admin.archived import payload_places
from jobledger.admin.objects.jobs import trail_shown
from jobledger.audit.trail import Line, trail_of
from jobledger.audit.trail_words import span
from jobledger.audit.verify.links import ChainCheck
from jobledger.audit.verify.payloads import NO_STATES, States, states_of
from jobledger.cli.one_job import JobRead
from jobledger.cli.output import Output
from jobledger.cli.text import clock_time, day, plain
from jobledger.ledger.model.codec import StoredEvent


async def trail_section(output: Output, read: JobRead) -> Callable[[], None]:
    """Look up the states of a job's large values, and return what prints its trail."""
    states = await states_of(payload_places(read.ledger, read.log), read.events)
    return partial(show_trail, output, read.events, read.now, read.chain, states)


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
    show_lines(output, told.lines)
    output.say()
    output.say(told.summary.text(), style="bold")
    show_check(output, check)


def show_check(output: Output, check: ChainCheck) -> None:
    """Say whether the hash links of a chain hold."""
    output.say(check.text(), style="" if check.is_unbroken else "bold red")


def show_lines(output: Output, lines: Iterable[Line]) -> None:
    """Print the lines of a trail below their days."""
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
