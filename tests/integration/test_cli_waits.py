"""`jobs show --why` on a run in each kind of wait: it names what the run waits for, and a command that can be typed as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support import waiting_runs as runs
from tests.support.command_line import CommandLine
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.ledger import Ledger
from jobledger.ledger.server import EmbeddedServer

Make = Callable[[Ledger, str], Awaitable[Any]]
START = "jobledger worker --app ... --queue orders"


class Wait(NamedTuple):
    """A run in one kind of wait: how it came there, what is said, and what a person types next (`ID` is its id)."""

    make: Make
    sentence: str
    hint: str


WAITS = {
    "queued": Wait(runs.enqueued, "no worker serves queue orders", START),
    "deadline": Wait(runs.with_a_deadline, "; if it has not ended by its deadline, 20", "jobledger doctor"),
    "limited": Wait(
        runs.limited,
        "nobody defined limit tenant:acme; it is number 1 of its line",
        "jobledger limits set tenant --slots 10",
    ),
    "going-back": Wait(
        runs.going_back,
        "no worker serves queue orders; it was cancelled (the wrong order), and ends once a worker has run the undos",
        START,
    ),
    "step": Wait(runs.in_a_step, "runs on worker w1 for", "jobledger jobs cancel ID"),
    "to-pause": Wait(runs.asked_to_pause, "and was asked to pause", "jobledger jobs show ID --tree"),
    "to-end": Wait(runs.asked_to_end, "and was asked to end", "jobledger jobs show ID --tree"),
    "version": Wait(
        runs.of_another_version,
        "2 workers serve queue orders, none has version 2 of workflow order, with which this run began",
        START,
    ),
    "lost": Wait(runs.on_a_dead_worker, "the lease of worker dead is over", "jobledger workers list"),
    "signal": Wait(
        runs.for_signal,
        "signal 'approved' (step 'approved'",
        "jobledger jobs signal ID approved --value '...'",
    ),
    "two": Wait(
        runs.for_two_things,
        "): nobody has sent it, or for the end of sleep 'no/sleep'",
        "jobledger jobs signal ID approved --value '...'",
    ),
    "sleep": Wait(runs.for_time, "meanwhile, and goes on by itself", "jobledger jobs cancel ID"),
    "late": Wait(runs.late, "(due for 3 min: is a worker running its timers?)", "jobledger doctor"),
    "retry": Wait(runs.for_retry, "try 1 failed: ConnectionError: the bank", "jobledger jobs cancel ID"),
    "undo": Wait(
        runs.between_tries_of_an_undo,
        "the next try of step 'undo/refund' at ",
        "jobledger jobs show ID --tree",
    ),
    "call": Wait(
        runs.for_a_call,
        "it waits for 1 of 1 child of 'fetch'",
        "jobledger jobs show ID-2-0 --why --queue pages",
    ),
    "map": Wait(
        runs.for_children,
        "it waits for 3 of 4 children of 'fetch'",
        "jobledger jobs show ID-2-0 --why --queue pages",
    ),
    "held-child": Wait(
        runs.for_a_held_child,
        "ID-2-0 (held by tenant:acme)",
        "jobledger jobs show ID-2-0 --why --queue pages",
    ),
    "failing": Wait(
        runs.for_a_child_after_a_failed_one,
        "1 ended, 1 of these not completed",
        "jobledger jobs show ID-2-1 --why --queue pages",
    ),
    "dead-child": Wait(
        runs.for_a_dead_child,
        "0 ended: ID-2-1 (dead letter), ID-2-0 (queued), ID-2-2 (queued); a dead letter waits for a person",
        "jobledger dlq requeue ID-2-1 --queue pages",
    ),
    "graph": Wait(runs.for_graph, "it waits for 1 of 4 children of 'graph'", "jobledger jobs show ID --tree"),
    "batch": Wait(
        runs.for_batch, "the program that adds its jobs, of task 'mail'", "jobledger jobs show ID --tree"
    ),
    "paused": Wait(runs.paused, "a person paused it (the bank is closed)", "jobledger jobs resume ID"),
    "child-failed": Wait(
        runs.dead_by_a_child,
        "(ChildFailedError: item 0 of step 'pages' failed); requeued it fails again",
        "jobledger jobs rerun ID --failed",
    ),
    "diverged": Wait(runs.diverged, "deploy code that fits, then requeue it", "jobledger dlq requeue ID"),
}


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> CommandLine:
    monkeypatch.setenv("JOBLEDGER_PROJECTION", str(tmp_path / "rows.db"))
    on_a_terminal(monkeypatch)
    return CommandLine(nats_server.url, capsys)


def problems(cli: CommandLine, names: list[str]) -> list[str]:
    """Make some runs; return a line for each thing that is not said of them, or not readable."""

    async def make(ledger: Ledger) -> None:
        for name in names:
            await WAITS[name].make(ledger, name)

    cli.with_ledger(make)
    wrong: list[str] = []
    for name in names:
        (found,) = cli.run("jobs", "show", "--why", name, "--json", *cli.where).lines
        wait = WAITS[name]
        if wait.sentence.replace("ID", name) not in found["sentence"] or found["hint"] != hint_of(name):
            wrong.append(f"{name}: {found['sentence']} -> {found['hint']}")
        if any(each["sequence"] >= found["event_sequence"] for each in found["waits"]):
            wrong.append(f"{name}: {found['event_sequence']} is not behind {found['waits']}")
        for words in (("show", name, "--tree"), ("show", "--graph", name)):
            shown = cli.run("jobs", *words, *cli.where)
            if shown.code or max(map(len, unstyled(shown.out))) > 80:
                wrong.append(f"{name}, {words[0]}: {shown}")
    return wrong


def hint_of(name: str) -> str:
    return WAITS[name].hint.replace("ID", name)


def test_why_names_what_to_type_next_for_each_kind_of_wait(cli: CommandLine) -> None:
    names = list(WAITS)
    living = names.index("step")  # from here on some worker lives
    assert problems(cli, names[:living]) == []
    assert problems(cli, names[living:]) == []
    for hint in dict.fromkeys(map(hint_of, names)):
        words = shlex.split(hint.replace("'...'", "true"))[1:]
        if words[0] in {"worker", "doctor"} or words[1] == "show":
            continue  # it goes on working, has something to complain of, or changes nothing
        answer = cli.run(*words, *cli.where, *(("--yes",) if words[0] == "dlq" else ()))
        assert answer.code == 0, (hint, answer)
