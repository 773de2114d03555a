"""`jobledger events tail`: the stored events of the ledger, one after the other."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import typer

from jobledger.admin.events.choice import EventChoice, chosen_events
from jobledger.admin.events.lines import event_json
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.events.lines import message_line
from jobledger.cli.groups import EVENTS
from jobledger.cli.times import parse_time
from jobledger.ledger import Ledger
from jobledger.ledger.event_stream import read_from
from jobledger.ledger.model.codec import Message
from jobledger.ledger.subscriptions.filter import Start

LAST: Final = 10  #: number of events shown without a beginning
_WINDOW: Final = 1_000


@command(EVENTS, "tail")
async def tail(
    cli: Cli,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEQ|TIME|now",
            help="Stream sequence or time (UTC) to begin at. (default: the last ten events)",
        ),
    ] = None,
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
        str | None, typer.Option("--job", metavar="ID", help="Only the job with exactly this id.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Continue with new events until Ctrl-C.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, metavar="N", help="End after this many events; without --from the last ones."
        ),
    ] = None,
) -> None:
    """Print the last ten stored events, or those from --from on, in stream order."""
    choice, output = chosen_events(options.split(types), queue=queue, task=task, job=job), cli.output
    begin = None if start is None else _parse_start(start)
    async with cli.ledger() as ledger, contextlib.AsyncExitStack() as following:
        if follow:
            await following.enter_async_context(ledger.reader_leases.held("follower"))
        head = (await ledger.log.head()).last_sequence
        if begin is None:
            last = LAST if limit is None or follow else limit
            begin = Start(from_sequence=await _begin_of_last(ledger, choice, min(last, limit or last)))
        if (begin.from_sequence or 1) > head + 1:
            raise UsageError(f"--from {begin.from_sequence} lies beyond the ledger's end, which is {head}")
        shown = 0
        if follow and not head:
            output.note("the ledger has no events yet: they are shown when they arrive")
        batches = await read_from(ledger, begin, choice.subjects(ledger.names), follow=follow)
        async with contextlib.aclosing(_chosen(batches, choice, limit)) as messages:
            async for message in messages:
                shown += 1
                if output.as_json:
                    output.raw(event_json(message))
                else:
                    output.line(message_line(message, narrow=output.is_narrow))
        if not (shown or output.as_json):
            output.note("no event matches" if head else "the ledger has no events yet")


async def _begin_of_last(ledger: Ledger, choice: EventChoice, count: int) -> int:
    """Return the sequence where the newest `count` chosen events begin; the ledger's first one if there are fewer.

    The server reads forwards only, so this reads a window at the end, eight times as large whenever it was too small.
    """
    head = await ledger.log.head()
    first, window = max(1, head.first_sequence), max(count, _WINDOW)
    while True:
        begin = max(first, head.last_sequence - window + 1)
        found: deque[int] = deque(maxlen=count)
        batches = await read_from(
            ledger, Start(from_sequence=begin), choice.subjects(ledger.names), follow=False
        )
        async with contextlib.aclosing(_chosen(batches, choice, None)) as messages:
            async for message in messages:
                found.append(message.stream_sequence)
        if len(found) == count:
            return found[0]
        if begin == first:
            return first
        window *= 8


async def _chosen(
    batches: AsyncGenerator[list[Message], None], choice: EventChoice, limit: int | None
) -> AsyncGenerator[Message, None]:
    """Yield messages up to the limit; of the events of jobs, only matching ones."""
    left = limit
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in batch:
                if not choice.fits(message):
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
    if text.isascii() and text.isdecimal() and len(text) < 20:  # noqa: PLR2004 - digits of the server's numbers
        return Start(from_sequence=max(1, int(text)))
    return Start(since=parse_time("--from", text, "a stream sequence, now or "))
