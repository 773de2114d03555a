"""`jobledger worker --processes N` and `--reload`: the supervisor of worker processes, which runs no job itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import msgspec

from jobledger.cli.errors import DONE, FAILED
from jobledger.cli.exposure import Exposure
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run, stoppable, until_closed
from jobledger.cli.session import until_eof as when_stdin_ends
from jobledger.workers import WorkerConfig
from jobledger.workers.processes.child import python
from jobledger.workers.supervision.reload import SourceWatch, source_folders
from jobledger.workers.supervision.supervisor import Supervisor, SupervisorConfig

#: Variables for this process alone. Children get the server's address by variable, since `ps` would show a password in
#: it.
_NOT_FOR_CHILDREN: Final = (
    "JOBLEDGER_PROCESSES",
    "JOBLEDGER_GATEWAY_HOST",
    "JOBLEDGER_GATEWAY_PORT",
    "JOBLEDGER_GATEWAY_PROCESSES",
    "JOBLEDGER_METRICS_PORT",
    "JOBLEDGER_METRICS_HOST",
    "JOBLEDGER_METRICS_TOKEN_FILE",
)
_LEASES_OF_SILENCE: Final = 2


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The workers to run, their number, and whether they restart when their source files change."""

    modules: list[str]
    queues: list[str]  #: as typed, with weights
    processes: int
    reload: bool
    exposure: Exposure = Exposure()


def supervise(
    output: Output,
    target: Target,
    config: WorkerConfig,
    crew: Crew,
    switches: Sequence[str],
    *,
    until_eof: bool,
) -> int:
    """Keep the workers running until stopped; return the exit code."""
    crew.exposure.check(crew.processes)
    patience = SupervisorConfig(processes=crew.processes, grace_s=config.grace_s, reload=crew.reload)
    watch = SourceWatch(source_folders(crew.modules)) if crew.reload else None
    command = _command(output, target, config, crew, switches)
    return run(
        lambda: _supervise(output, target, command, patience, watch, crew.exposure, until_eof=until_eof)
    )


def _command(
    output: Output, target: Target, config: WorkerConfig, crew: Crew, switches: Sequence[str]
) -> list[str]:
    words = python("jobledger.cli", *switches, "worker")
    for option, values in (("--app", crew.modules), ("--queue", crew.queues)):
        for value in values:
            words += [option, value]
    if not config.schedules:
        words += ["--no-schedules"]
    if target.environment:
        words += ["--environment", target.environment]
    if target.ledger_bytes_max is not None:
        words += ["--ledger-bytes-max", str(target.ledger_bytes_max)]
    return [*words, "--json"] if output.as_json else words


def environment_of_child(target: Target) -> dict[str, str]:
    """Return the variables of a child process: those of this process, and the access to the server."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_CHILDREN}
    return inherited | target.variables()


async def _supervise(  # noqa: PLR0917 - options of the command
    output: Output,
    target: Target,
    command: Sequence[str],
    patience: SupervisorConfig,
    watch: SourceWatch | None,
    exposure: Exposure,
    *,
    until_eof: bool,
) -> int:
    code = DONE  # for a signal before the supervisor runs
    async with stoppable() as stopping, opened(target) as ledger, anyio.create_task_group() as group:
        # Twice the lease: after such a silence other workers have taken over the process's jobs.
        silence_s = _LEASES_OF_SILENCE * await ledger.leases.duration_s()
        patience = msgspec.structs.replace(patience, silence_s=silence_s)
        supervisor = Supervisor(
            ledger.leases.end,
            command,
            patience,
            environment=environment_of_child(target),
            of_place=exposure.variables,
        )
        asked = False

        def on_signal() -> None:
            nonlocal asked
            if not asked:
                output.note("stopping: running attempts may finish (--grace); a second signal stops at once")
            asked = True
            supervisor.stop()

        def at_once() -> None:
            supervisor.stop()
            supervisor.stop()

        def on_change(paths: list[str]) -> None:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            output.note(f"{Path(paths[0]).name}{more} changed: restarting")
            supervisor.restart()

        code = FAILED
        stopping.act = on_signal
        group.start_soon(until_closed, ledger)
        if until_eof:
            group.start_soon(when_stdin_ends, at_once)
        if watch is not None:
            group.start_soon(watch.run, on_change)
        with output.telling():
            _say_begun(output, supervisor, patience)
        code = await supervisor.run()
        group.cancel_scope.cancel()
    return code


def _say_begun(output: Output, supervisor: Supervisor, patience: SupervisorConfig) -> None:
    if output.as_json:
        output.object(
            {"supervisor": supervisor.identity, "pid": os.getpid(), "processes": patience.processes}
        )
    else:
        count = f"{patience.processes} worker process{'es' if patience.processes > 1 else ''}"
        output.say(f"supervisor {supervisor.identity} runs {count}; stop with Ctrl-C")
