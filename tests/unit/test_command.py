"""`@command`: which options a command gets, what its function is told, and which modules a command line imports."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from jobledger.cli import session
from jobledger.cli.command import LEDGER, OFFLINE, ROWS, Cli, command
from jobledger.cli.commands import COMMANDS, Group
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.nats.access import NAMES

Count = Annotated[int, typer.Option("--count")]


def _run(app: typer.Typer, *words: str) -> Any:
    app.callback()(lambda: None)
    return typer.main.get_command(app).main(args=list(words), standalone_mode=False)


def _options(app: typer.Typer, name: str) -> list[str]:
    app.callback()(lambda: None)
    group: Any = typer.main.get_command(app)
    return [option for each in group.commands[name].params for option in each.opts]


ACCESS = ["--context"] + [f"--{name.replace('_', '-')}" for name in NAMES]


@pytest.mark.parametrize(
    ("takes", "names"),
    [
        (OFFLINE, ["--json"]),
        (LEDGER, ["--url", "--environment", "--json", *ACCESS]),
        (ROWS, ["--projection", "--url", "--environment", "--json", *ACCESS]),
    ],
)
def test_a_command_has_its_own_options_and_those_that_it_takes(
    takes: tuple[str, ...], names: list[str]
) -> None:
    app = typer.Typer()

    @command(app, "act", takes=takes)
    async def _act(cli: Cli, *, count: Count = 1) -> None: ...

    assert _options(app, "act") == ["--count", *names]


def test_a_coroutine_is_told_everything_and_its_number_is_the_exit_code() -> None:
    app, told = typer.Typer(), list[Any]()

    @command(app, "act", takes=ROWS)
    async def _act(cli: Cli, *, count: Count = 1) -> int:
        told.extend((cli.target.url, cli.target.environment, cli.projection, cli.output.as_json, count))
        return 4

    words = ("--count", "3", "--url", "nats://h:1", "--environment", "e", "--projection", "p.db", "--json")
    assert _run(app, "act", *words) == 4
    assert told == ["nats://h:1", "e", Path("p.db"), True, 3]


def test_what_a_command_does_not_take_is_at_its_default() -> None:
    app, told = typer.Typer(), list[Any]()

    @command(app, "act", takes=OFFLINE)
    def _act(cli: Cli) -> None:
        told.extend((cli.target.url, cli.target.environment, cli.projection, cli.output.as_json))

    assert _run(app, "act") is None
    assert told == [DEFAULT_URL, "", None, False]


def test_a_coroutine_that_a_plain_function_returns_is_run_after_it() -> None:
    app, done = typer.Typer(), list[str]()

    async def act() -> None:
        done.append("run")

    @command(app, "act", takes=OFFLINE)
    def _act(cli: Cli) -> Awaitable[None]:
        done.append("prepared")
        return act()

    _run(app, "act")
    assert done == ["prepared", "run"]


@pytest.mark.parametrize("is_plain", [True, False])
def test_the_collector_that_the_entry_turned_off_runs_again_in_a_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, is_plain: bool
) -> None:
    monkeypatch.setattr(session, "_COLLECTS_AFTER_S", 0.0)
    app, seen = typer.Typer(), list[bool]()

    async def goes_on(cli: Cli) -> None:
        seen.append(gc.isenabled())
        async with asyncio.timeout(5):
            while not gc.isenabled():
                await asyncio.sleep(0)

    def plain(cli: Cli) -> None:
        seen.append(gc.isenabled())

    command(app, "go", takes=OFFLINE)(plain if is_plain else goes_on)
    gc.disable()
    try:
        _run(app, "go")
        assert (seen, gc.isenabled()) == ([is_plain], True)
    finally:
        gc.enable()


def _modules(group: Group) -> set[str]:
    found = set[str]()
    for member in group.members.values():
        found |= _modules(member) if isinstance(member, Group) else {f"jobledger.cli.{member}"}
    return found


#: Takes the command lines from its arguments, and answers each in a process of its own, which has imported no command.
_IMPORTED = """
import json, os, sys
from jobledger.cli.main import run
for words in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if not os.fork():
        sys.stdout = sys.stderr = open(os.devnull, "w")
        run(words)
        print(json.dumps(sorted(sys.modules)), file=sys.__stdout__, flush=True)
        os._exit(0)
    os.wait()
"""


def test_only_the_modules_of_the_command_are_imported() -> None:
    own: list[tuple[list[str], set[str]]] = [
        (["jobs", "list", "--help"], {"jobledger.cli.jobs.list"}),
        (["--verbose", "events", "subscriptions", "list", "--help"], {"jobledger.cli.events.subscriptions"}),
        (["--version"], set[str]()),
        (["dlq", "--help"], {"jobledger.cli.dlq.list", "jobledger.cli.dlq.show", "jobledger.cli.dlq.acts"}),
        (["jobs", "nonsense"], {name for name in _modules(COMMANDS) if name.startswith("jobledger.cli.jobs.")}
         - {f"jobledger.cli.jobs.{name}" for name in ("enqueue", "queues", "stats", "timers")}),
    ]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTED, json.dumps([words for words, _ in own])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = [set(json.loads(line)) & _modules(COMMANDS) for line in ran.stdout.splitlines()]
    assert imported == [modules for _, modules in own]
