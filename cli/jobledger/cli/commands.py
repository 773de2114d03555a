"""Which commands there are, and where each is found: only the one that was asked for is imported.

A start of the command line is mostly imports, and no command needs those of all others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Final

import typer

#: In the order of `--help`: a command's or group's name, and its module below `jobledger.cli`. A command is the
#: function of its name there; a group is the `app` there.
_COMMANDS: Final = {
    "up": "processes.up",
    "server": "processes.server",
    "worker": "processes.worker",
    "enqueue": "jobs.enqueue",
    "jobs": "jobs.jobs",
    "queues": "jobs.queues",
    "dlq": "dlq.dlq",
    "events": "events.events",
    "audit": "audit.audit",
    "projection": "projection.projection",
    "timers": "jobs.timers",
    "workers": "processes.workers",
    "replay": "projection.replay",
    "metrics": "health.metrics",
    "doctor": "health.doctor",
    "demo": "demo.demo",
}
#: Modules that add commands to a group.
_MORE: Final = {"jobs": "jobs.acts", "dlq": "dlq.acts"}


def add_commands(app: typer.Typer, words: Sequence[str]) -> None:
    """Add the command that the words of a command line name, all of them where they name none."""
    first = next((word for word in words if not word.startswith("-")), "")
    for name in (first,) if first in _COMMANDS else _COMMANDS:
        group = _group(name)
        if group is not None:
            app.add_typer(group, name=name)
        else:
            app.command(name)(getattr(_module(_COMMANDS[name]), name))


@functools.cache
def _group(name: str) -> typer.Typer | None:
    """Return a group with all its commands, which are added once; None for what is a command itself."""
    group: typer.Typer | None = getattr(_module(_COMMANDS[name]), "app", None)
    if group is not None and name in _MORE:
        _module(_MORE[name]).add_to(group)
    return group


def _module(place: str) -> ModuleType:
    return import_module(f"jobledger.cli.{place}")
