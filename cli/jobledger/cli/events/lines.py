"""A stored event as one line: for a person, and as JSON for a program."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.text import Text

from jobledger.cli.output import Output
from jobledger.cli.text import clock_time, colored, plain, shortened
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.events import EVENT_TYPES, event_type
from jobledger.ledger.model.lifecycle import words
from jobledger.ledger.model.subjects import aggregate_of

_TYPE_WIDTH: Final = max(map(len, EVENT_TYPES))
_DETAIL_MAX: Final = 300
_SET_ASIDE: Final = "unreadable"
_ID_NARROW: Final = 18


def message_line(message: Message, *, narrow: bool = False) -> Text:
    """Return an event of any aggregate as one line for a person."""
    if isinstance(message, StoredEvent):
        return event_line(message, narrow=narrow)
    if isinstance(message, Unreadable):
        return _set_aside_line(message)
    return _other_line(message)


def _set_aside_line(message: Unreadable) -> Text:
    """Return a message that is not an event as one line: where it is stored, and why it is not one."""
    line = Text(f"{message.stream_sequence:>6} {clock_time(message.stored_at)} ", style="dim")
    line.append(f"{_SET_ASIDE} ", style="red")
    return line.append(shortened(message.why, _DETAIL_MAX), style="dim")


def event_line(stored: StoredEvent, *, narrow: bool = False) -> Text:
    """Return a stored event as one line for a person; a `narrow` line has no room for whole ids."""
    event = stored.event
    line, detail = event_parts(stored)
    if narrow:
        # An id is cut to a prefix, which `jobs show` accepts; the prefix of a UUIDv7 contains its millisecond.
        line.append(f"{plain(event.job)[:_ID_NARROW]} ", style="")
        line.append(f"{shortened(event.task, 16)} ", style="dim")
    else:
        line.append(f"{shortened(event.job, 36)} ", style="")
        line.append(f"{shortened(event.queue, 20)}/{shortened(event.task, 24)} ", style="dim")
    line.append_text(detail)
    line.rstrip()
    return line


def event_parts(stored: StoredEvent, at: datetime | None = None) -> tuple[Text, Text]:
    """Return the beginning of a line about an event, up to a blank behind its type, and the details that follow.

    `at` is the time to show; without it, the server's time.
    """
    name = event_type(stored.event)
    head = Text(f"{stored.stream_sequence:>6} {clock_time(at or stored.stored_at)} ", style="dim")
    head.append_text(_unstyled(colored(name), name))
    head.append(" ")
    return head, Text(shortened(words(stored.event), _DETAIL_MAX))


def show_event(output: Output, stored: StoredEvent, at: datetime | None = None) -> None:
    """Print an event of a job that was named above; on a terminal its details wrap, so that nothing is cut off."""
    output.hanging(*event_parts(stored, at))


def _unstyled(word: Text, name: str) -> Text:
    word.pad_right(_TYPE_WIDTH - len(name))
    return word


def _other_line(message: Message) -> Text:
    """Return an event of an aggregate other than jobs as one line: its chain, and its text."""
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
