"""The history of something that people set, such as a key or a route: a line for each change."""

from __future__ import annotations

from collections.abc import Sequence

from jobledger.admin.events.changes import Change
from jobledger.admin.verbs.kit import Heading, told_changes
from jobledger.cli.output import Output


def tell_changes(output: Output, history: Sequence[Change]) -> None:
    """Print the changes, which come with the newest first."""
    for line in told_changes(history):
        output.say(line, style="bold" if isinstance(line, Heading) else "")
