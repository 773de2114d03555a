"""`jobledger jobs show --tree`: a run, its steps, and all the jobs below it, from the projection brought up to date."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from rich.text import Text

from jobledger.admin.amounts import duration
from jobledger.admin.past import AsOf
from jobledger.admin.runs import Tree, TreeStep, run_tree
from jobledger.cli.command import Cli
from jobledger.cli.jobs.step_words import mark, step_details, step_name, took
from jobledger.cli.output import Output
from jobledger.cli.past import rows_begin, viewed
from jobledger.cli.text import colored, plain, shortened
from jobledger.ledger.model.job import CLOSED_STATES

_NAME_MAX: Final = 48
_ERROR_MAX: Final = 120
_STYLES: Final = {"✓": "green", "✗": "red", "↻": "yellow", "▶": "cyan"}


class _Line(NamedTuple):
    branches: str  #: `│ ├ `
    mark: str
    name: str
    details: tuple[str, ...]


async def show_tree(cli: Cli, job_id: str, queue: str | None, past: AsOf | None) -> None:
    """Print the tree of a run. Raises: as `viewed` and `run_tree`."""
    async with viewed(cli, past) as view:
        tree = run_tree(view.store, job_id, queue)
    if cli.output.as_json:
        cli.output.object({**msgspec.structs.asdict(tree), **rows_begin(view)})
    else:
        _show(cli.output, tree, view.now)


def _show(output: Output, tree: Tree, now: datetime) -> None:
    """Print the tree for a person, a line for each step and each child; the names of one depth have one width."""
    version = f" v{tree.version}" if tree.version else ""
    head = Text(f"{plain(tree.id)}  {plain(tree.task)}{version}  ", style="bold")
    output.line(head + _state(tree, now))
    lines = list(_steps(tree, "", now))
    width = max((len(line.branches) + len(line.name) for line in lines), default=0)
    for line in lines:
        text = Text(line.branches, style="dim")
        text.append(f"{line.mark} " if line.mark else "", style=_STYLES.get(line.mark, ""))
        text.append(line.name.ljust(width - len(line.branches)))
        text.append("   ".join(("", *(shortened(each, _ERROR_MAX) for each in line.details))), style="dim")
        output.line(text)
    if not lines:
        output.say("  it has recorded no step", style="dim")


def _state(tree: Tree, now: datetime) -> Text:
    if tree.completed_at is not None:
        return colored(tree.status).append(f" {_took(tree)}".rstrip(), style="dim")
    return colored(tree.status).append(f" {_between(tree.since, now)}", style="dim")


def _took(tree: Tree) -> str:
    """Return how long a job took, with the waits between its attempts; "" where it has not ended, or never began."""
    if tree.started_at is None or tree.completed_at is None:
        return ""
    return _between(tree.started_at, datetime.fromisoformat(tree.completed_at))


def _between(begin: str, end: datetime) -> str:
    return duration(max(0.0, (end - datetime.fromisoformat(begin)).total_seconds()))


def _steps(tree: Tree, before: str, now: datetime) -> Iterator[_Line]:
    """Yield the lines below a job; `before`: the branches of the lines above."""
    for number, step in enumerate(tree.steps, start=1):
        is_last = number == len(tree.steps) and not tree.undos
        yield _step(step, f"{before}{'└' if is_last else '├'} ", now, is_closed=tree.status in CLOSED_STATES)
        yield from _children(step, f"{before}{' ' if is_last else '│'} ", now)
    if tree.undos:
        registered = "1 undo" if tree.undos == 1 else f"{tree.undos:,} undos"
        yield _Line(f"{before}└ ", "·", registered, ("registered, should the run fail or be cancelled",))


def _step(each: TreeStep, branches: str, now: datetime, *, is_closed: bool) -> _Line:
    step = each.step
    tries = f"{step.tries} tries" if step.tries > 1 else ""
    is_open = step.status == "started" and not is_closed and step.started_at is not None
    spent = f"for {_between(step.started_at or '', now)}" if is_open else took(step)
    details = (tries, spent, *step_details(step, is_closed=is_closed))
    return _Line(branches, mark(step.status), _cut(step_name(step)), tuple(filter(None, details)))


def _children(step: TreeStep, before: str, now: datetime) -> Iterator[_Line]:
    for number, child in enumerate(step.children, start=1):
        is_last = number == len(step.children) and not step.hidden
        details = (
            child.label if child.label != child.task else "",
            child.task if child.task != step.step.target else "",
            child.status.replace("_", " ") if child.status != "completed" else "",
            "completed after the join" if child.late else "",
            f"waits for {child.awaiting.replace(' ', ', ')}" if child.awaiting else "",
            _took(child),
            child.error or "",
        )
        branches = f"{before}{'└' if is_last else '├'} "
        yield _Line(branches, mark(child.status), _cut(child.id), tuple(filter(None, details)))
        yield from _steps(child, f"{before}{' ' if is_last else '│'} ", now)
    if step.hidden:
        yield _Line(f"{before}└ ", "", f"and {step.hidden:,} more", ())


def _cut(name: str) -> str:
    return shortened(name, _NAME_MAX)
