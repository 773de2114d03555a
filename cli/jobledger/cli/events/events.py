"""`jobledger events`: the ledger as it was written, one stored event after the other; schemas, subscriptions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

import msgspec
import typer
from rich.text import Text

from jobledger.cli import options
from jobledger.cli.errors import UsageError
from jobledger.cli.events import schema as events_schema
from jobledger.cli.events import subscriptions
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import clock_time, colored, plain, shortened
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.event_stream import read_from
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.events import (
    EVENT_TYPES,
    event_type,
)
from jobledger.ledger.model.lifecycle import words
from jobledger.ledger.model.subjects import Names, aggregate_of
from jobledger.ledger.model.times import time_text
from jobledger.ledger.subscriptions.filter import EventFilter, Start, chosen_filter

app = typer.Typer(
    help="Read the ledger's events; see what they look like, and who reads them.", no_args_is_help=True
)

_TYPE_WIDTH: Final = max(map(len, EVENT_TYPES))
_DETAIL_MAX: Final = 300
_ID_NARROW: Final = 18
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SERVER_TIME_END: Final = datetime(2262, 1, 1, tzinfo=UTC)


@app.command("tail")
def tail(
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="SEQ|TIME|now", help="Stream sequence or time (UTC) to begin at.")
    ] = "1",
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="Only events of this type; repeat it, or separate by commas."
        ),
    ] = None,
    queue: options.Queue = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Only events of this task.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only the job of this id, given whole.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with new events until Ctrl-C.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="End after this many events.")
    ] = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Print stored events in stream order, from the first one on unless told otherwise."""
    wanted = frozenset(options.split(types))
    known = [kind for aggregate in AGGREGATES.values() for kind in aggregate.types]
    unknown = sorted(wanted - set(known))
    if unknown:
        raise UsageError(f"there is no event type {unknown[0][:60]!r}; the types: {', '.join(known)}")
    others = sorted(wanted - set(EVENT_TYPES))
    chosen = [name for name, value in (("queue", queue), ("task", task), ("job", job)) if value is not None]
    if others and chosen:
        raise UsageError(f"{others[0]} is not an event of jobs, among which --{chosen[0]} chooses")
    jobs = chosen_filter(types=sorted(wanted - set(others)), queue=queue, task=task, job=job)
    begin, target = _parse_start(start), Target(url=url, environment=environment)
    choice = _Choice(
        jobs, None if not (wanted or chosen) else bool(wanted - set(others) or chosen), tuple(others)
    )
    output = Output(as_json=as_json)
    run(lambda: _tail(output, target, begin, choice, follow=follow, limit=limit))


class _Choice(NamedTuple):
    """Which events are shown."""

    jobs: EventFilter
    with_jobs: bool | None  #: None: everything there is
    others: tuple[str, ...]  #: types of other aggregates' events

    def subjects(self, names: Names) -> tuple[str, ...] | None:
        """Return what the server filters by; None for everything."""
        if self.with_jobs is None:
            return None
        others = (
            aggregate.of_type(names, kind)
            for aggregate in AGGREGATES.values()
            for kind in self.others
            if kind in aggregate.types
        )
        return (*(self.jobs.subjects(names) if self.with_jobs else ()), *others)


async def _tail(
    output: Output,
    target: Target,
    begin: Start,
    choice: _Choice,
    *,
    follow: bool,
    limit: int | None,
) -> None:
    async with opened(target) as ledger:
        head = (await ledger.log.head()).last_sequence
        if (begin.from_sequence or 1) > head + 1:
            raise UsageError(f"--from {begin.from_sequence} lies beyond the ledger's end, which is {head}")
        shown = 0
        if follow and not head:
            output.note("the ledger has no events yet: they are shown as they come")
        batches = await read_from(ledger, begin, choice.subjects(ledger.names), follow=follow)
        async with contextlib.aclosing(_chosen(batches, choice.jobs, limit)) as messages:
            async for message in messages:
                shown += 1
                if output.as_json:
                    output.raw(event_json(message))
                elif isinstance(message, StoredEvent):
                    output.line(event_line(message, narrow=output.is_narrow))
                else:
                    output.line(_other_line(message))
        if not (shown or output.as_json):
            output.note("no event is what was asked for" if head else "the ledger has no events yet")


async def _chosen(
    batches: AsyncGenerator[list[Message], None], jobs: EventFilter, limit: int | None
) -> AsyncGenerator[Message, None]:
    """Yield the messages, of jobs those that fit, up to the limit."""
    left = limit
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in batch:
                if isinstance(message, StoredEvent) and not jobs.fits(message):
                    continue
                yield message
                left = None if left is None else left - 1
                if left == 0:
                    return


def _parse_start(text: str) -> Start:
    """Read a stream sequence, a time, or `now`.

    Raises: UsageError.
    """
    if text == "now":
        return Start(live=True)
    if text.isascii() and text.isdecimal() and len(text) < 20:  # noqa: PLR2004 - what the server counts to
        return Start(from_sequence=max(1, int(text)))
    return Start(since=parse_time("--from", text, "a stream sequence, now or "))


def parse_time(option: str, text: str, before: str = "") -> datetime:
    """Read an ISO 8601 time; one without a zone counts as UTC.

    Raises: UsageError.
    """
    try:
        found = datetime.fromisoformat(text)
        found = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        wanted = f"{before}a time such as 2025-01-31T08:00:00Z"
        raise UsageError(f"{option} {text[:60]!r} is not {wanted}") from error
    if not _EPOCH <= found < _SERVER_TIME_END:  # the server counts nanoseconds since 1970 in 64 bits
        raise UsageError(f"{option} {text[:60]!r} is not a time from 1970 to 2261")
    return found


def event_json(stored: Message) -> str:
    """Return a stored event as one line of JSON: its fields as stored, with stream sequence and server time."""
    head = f'{{"stream_sequence":{stored.stream_sequence},"stored_at":"{time_text(stored.stored_at)}",'
    data = stored.data.strip()
    if b"\n" in data or b"\r" in data:  # written by somebody else's encoder
        data = msgspec.json.format(data, indent=-1)
    return head + data[1:].decode()


def event_line(stored: StoredEvent, *, narrow: bool = False) -> Text:
    """Return a stored event as one line for a person; a `narrow` one has room for what happened, not for whole ids."""
    event = stored.event
    line, detail = event_parts(stored)
    if narrow:
        # What is left of an id is a prefix, which `jobs show` takes, and a UUIDv7's is unique to its millisecond.
        line.append(f"{plain(event.job)[:_ID_NARROW]} ", style="")
        line.append(f"{shortened(event.task, 16)} ", style="dim")
    else:
        line.append(f"{shortened(event.job, 36)} ", style="")
        line.append(f"{shortened(event.queue, 20)}/{shortened(event.task, 24)} ", style="dim")
    line.append_text(detail)
    line.rstrip()
    return line


def event_parts(stored: StoredEvent) -> tuple[Text, Text]:
    """Return what every line about an event begins with, a blank at its end, and what it says beyond its type."""
    name = event_type(stored.event)
    head = Text(f"{stored.stream_sequence:>6} {clock_time(stored.stored_at)} ", style="dim")
    head.append_text(_unstyled(colored(name), name))
    head.append(" ")
    return head, Text(shortened(words(stored.event), _DETAIL_MAX))


def show_event(output: Output, stored: StoredEvent) -> None:
    """Print an event of a job that was named before; on a terminal what it says is folded, and nothing is cut off."""
    output.hanging(*event_parts(stored))


def _unstyled(word: Text, name: str) -> Text:
    word.pad_right(_TYPE_WIDTH - len(name))
    return word


def _other_line(message: Message) -> Text:
    """Return an event of another aggregate as one line: the chain it is in, and what it says."""
    aggregate = AGGREGATES[aggregate_of(message.subject)]
    event = aggregate.decode(message)
    name = aggregate.type_of(event)
    line = Text(f"{message.stream_sequence:>6} {clock_time(message.stored_at)} ", style="dim")
    line.append_text(_unstyled(colored(name), name))
    line.append(f" {plain(aggregate.label(aggregate.key_of(event)))}", style="")
    said = aggregate.words(event)
    parts = [said] if event.by in said else [said, f"by {event.by}"]
    line.append(f" {shortened(', '.join(filter(None, parts)), _DETAIL_MAX)}", style="dim")
    return line


events_schema.add_to(app)
app.add_typer(subscriptions.app, name="subscriptions")
