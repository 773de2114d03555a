"""`jobledger gateway`: the ledger over HTTP, with a dashboard; stopping it is a request first and a command the second time."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer
from anyio.abc import TaskGroup

from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import DONE
from jobledger.cli.exposure import LOOPBACK
from jobledger.cli.groups import TOP
from jobledger.cli.logs import log_as_process, log_format
from jobledger.cli.output import Output
from jobledger.cli.processes import options as process
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import Stopping, stoppable, until_closed
from jobledger.cli.session import until_eof as when_stdin_ends
from jobledger.cli.times import seconds
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers.process import log_what_nobody_catches, tune_collector
from jobledger.workers.supervision.supervised import Parent
from jobledger.workers.supervision.supervisor import PROCESSES_MAX, Supervisor, SupervisorConfig

if TYPE_CHECKING:
    from jobledger.gateway.process.running import Process
    from jobledger.gateway.process.serving import Settings

DEFAULT_PORT: Final = 8080
#: What the extra `gateway` installs, by the names of their modules.
_NEEDED: Final = ("httptools", "httpx", "itsdangerous", "jinja2", "starlette", "uvicorn")

Port = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        envvar="JOBLEDGER_GATEWAY_PORT",
        metavar="PORT",
        help="Port to listen on; 0 takes a free one.",
    ),
]
Host = Annotated[
    str,
    typer.Option("--host", envvar="JOBLEDGER_GATEWAY_HOST", metavar="HOST", help="Address to listen on."),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        envvar="JOBLEDGER_GRACE_S",
        metavar="SPAN",
        parser=seconds(),
        help="How long requests that run may continue after a stop was requested.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=PROCESSES_MAX,
        envvar="JOBLEDGER_GATEWAY_PROCESSES",
        metavar="N",
        help="Run N processes on the same port and restart any that die. (default: this process alone)",
    ),
]
NoProjector = Annotated[
    bool,
    typer.Option(
        "--no-projector",
        metavar="",
        envvar="JOBLEDGER_NO_PROJECTOR",
        help="Do not follow the ledger: another process keeps the projection's file up to date.",
    ),
]
_HTTPS = "HTTPS and proxies"
HttpsCert = Annotated[
    Path | None,
    typer.Option(
        "--https-cert",
        envvar="JOBLEDGER_HTTPS_CERT",
        metavar="FILE",
        help="Certificate to show, in PEM; without one the gateway speaks plain HTTP.",
        rich_help_panel=_HTTPS,
    ),
]
HttpsKey = Annotated[
    Path | None,
    typer.Option(
        "--https-key",
        envvar="JOBLEDGER_HTTPS_KEY",
        metavar="FILE",
        help="Its key, in PEM. (default: in the same file)",
        rich_help_panel=_HTTPS,
    ),
]
BehindProxy = Annotated[
    list[str] | None,
    typer.Option(
        "--behind-proxy",
        envvar="JOBLEDGER_BEHIND_PROXY",
        metavar="ADDRESSES",
        help="Proxies that speak HTTPS for this gateway: addresses or networks whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed. Repeat it, or separate several by commas.",
        rich_help_panel=_HTTPS,
    ),
]


def missing() -> str:
    """Return a sentence on what is not installed, "" where the gateway can run."""
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return f"the gateway needs {', '.join(lacking)}: install them with pip install 'jobledger[gateway]'"


@command(TOP, "gateway", takes=ROWS)
def gateway(
    cli: Cli,
    *,
    port: Port = DEFAULT_PORT,
    host: Host = LOOPBACK,
    grace: Grace = 10.0,
    https_cert: HttpsCert = None,
    https_key: HttpsKey = None,
    behind_proxy: BehindProxy = None,
    processes: Processes = None,
    no_projector: NoProjector = False,
    until_eof: process.UntilEof = False,
    supervised: Annotated[str | None, typer.Option("--supervised", metavar="NAME:FD", hidden=True)] = None,
) -> Awaitable[int | None]:
    """Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.

    The first signal ends streams and waits, and lets running requests finish (--grace); a second stops at once.
    """
    log_as_process()
    if sentence := missing():
        raise ConfigurationError(sentence)
    # Imported here: who lacks the extra gets the sentence above.
    from jobledger.gateway.process.serving import Settings  # noqa: PLC0415

    parent = None if supervised is None else Parent(supervised)
    settings = Settings(
        host=host,
        port=port,
        grace_s=grace,
        https_cert=https_cert,
        https_key=https_key,
        behind_proxy=tuple(options.split(behind_proxy)),
        is_shared=parent is not None or processes is not None,
    )
    if processes is not None and parent is None:
        return _supervise(cli, settings, processes, project=not no_projector, until_eof=until_eof)
    return _gateway(cli, settings, parent, project=not no_projector, until_eof=until_eof)


async def _gateway(
    cli: Cli, settings: Settings, parent: Parent | None, *, project: bool, until_eof: bool
) -> None:
    from jobledger.gateway.access.local import LocalAccess  # noqa: PLC0415
    from jobledger.gateway.process.listening import listen, refuse_keyless, refuse_plain  # noqa: PLC0415
    from jobledger.gateway.process.running import Process  # noqa: PLC0415

    tune_collector()
    async with stoppable() as stopping, cli.ledger() as ledger:
        with listen(settings.host, settings.port, is_shared=settings.is_shared) as bound:
            refuse_keyless(bound)
            refuse_plain(bound, settings)
            log_what_nobody_catches(ledger.connection.loop)
            path = await cli.rows(ledger).path()
            made = Process(ledger, path, LocalAccess(), settings, project=project)
            async with anyio.create_task_group() as group:
                _heed(group, made, cli.output, stopping, parent, until_eof=until_eof)
                group.start_soon(until_closed, ledger)
                await made.run(bound, lambda: _say_ready(cli.output, bound, settings, path, parent))
                group.cancel_scope.cancel()


def _heed(
    group: TaskGroup,
    made: Process,
    output: Output,
    stopping: Stopping,
    parent: Parent | None,
    *,
    until_eof: bool,
) -> None:
    """Stop when a signal, the supervisor or the end of stdin asks for it."""
    asked = False

    def once() -> None:
        nonlocal asked
        if not asked:
            asked = True
            made.stop()

    def at_once() -> None:
        made.stop()
        made.stop()
        group.cancel_scope.cancel()

    def on_signal() -> None:
        if asked:
            at_once()
            return
        output.note("stopping: running requests may finish (--grace); a second signal stops at once")
        once()

    stopping.act = on_signal if parent is None else once
    if parent is not None:
        group.start_soon(parent.watch, once, at_once)
    if until_eof:
        group.start_soon(when_stdin_ends, at_once)


def _say_ready(
    output: Output, bound: socket.socket, settings: Settings, path: Path, parent: Parent | None
) -> None:
    from jobledger.gateway.process.listening import url_of  # noqa: PLC0415

    if parent is not None:
        parent.ready()
        return
    url = url_of(bound, https=settings.https_cert is not None)
    with output.telling():
        if output.as_json:
            output.object({"gateway": url, "projection": str(path), "pid": os.getpid()})
        else:
            output.say(f"the gateway is ready at {url}; stop it with Ctrl-C", style="bold green")


async def _supervise(cli: Cli, settings: Settings, processes: int, *, project: bool, until_eof: bool) -> int:
    """Keep several processes on one port; the first of them follows the ledger for all."""
    from jobledger.gateway.process.listening import listen, refuse_plain, url_of  # noqa: PLC0415

    code = DONE  # when a signal comes before the supervisor runs
    async with stoppable() as stopping, anyio.create_task_group() as group:
        # Bound and never listened on: it keeps the port while no process has it, and tells which one 0 took.
        with listen(settings.host, settings.port, is_shared=True) as bound:
            refuse_plain(bound, settings)
            supervisor = Supervisor(
                _no_lease,
                _command(cli, settings, bound.getsockname()[1], project=project),
                SupervisorConfig(processes=processes, grace_s=settings.grace_s, what="gateway process"),
                environment=environment_of_child(cli.target),
                of_place=lambda place: {"JOBLEDGER_NO_PROJECTOR": "1"} if place else {},
            )

            def at_once() -> None:
                supervisor.stop()
                supervisor.stop()

            stopping.act = supervisor.stop
            if until_eof:
                group.start_soon(when_stdin_ends, at_once)
            url = url_of(bound, https=settings.https_cert is not None)
            with cli.output.telling():
                if cli.output.as_json:
                    cli.output.object({"gateway": url, "processes": processes, "pid": os.getpid()})
                else:
                    cli.output.say(f"{processes} processes of the gateway answer at {url}; stop with Ctrl-C")
            code = await supervisor.run()
            group.cancel_scope.cancel()
    return code


async def _no_lease(_identity: str) -> bool:
    return False


def _command(cli: Cli, settings: Settings, port: int, *, project: bool) -> list[str]:
    # -P, as under the installed command: a file of the current folder must not stand in for a library of ours.
    words = [sys.executable, "-P", "-m", "jobledger.cli", "--log-format", log_format(), "gateway"]
    words += ["--host", settings.host, "--port", str(port), "--grace", str(settings.grace_s)]
    if cli.projection is not None:
        words += ["--projection", str(cli.projection)]
    if cli.target.environment:
        words += ["--environment", cli.target.environment]
    for name, file in (("--https-cert", settings.https_cert), ("--https-key", settings.https_key)):
        words += [] if file is None else [name, str(file)]
    for address in settings.behind_proxy:
        words += ["--behind-proxy", address]
    return words if project else [*words, "--no-projector"]
