"""The history of something that people set, such as a key or a route: a line for each change."""

from __future__ import annotations

from collections.abc import Sequence

from jobledger.admin.events.changes import Change
from jobledger.cli.output import Output
from jobledger.cli.text import plain
from jobledger.ledger.model.times import shown_time


def tell_changes(output: Output, history: Sequence[Change]) -> None:
    """Print the changes, which come with the newest first."""
    output.say()
    output.say("history", style="bold")
    for each in history:
        words = f"{each.event} {plain(each.words)}".rstrip()
        output.say(f"{each.stream_sequence:>6} {shown_time(each.at)} {words}, by {plain(each.by)}")
