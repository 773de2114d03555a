"""`jobledger gateway`: the ledger over HTTP, with a dashboard; a first signal asks it to end, a second forces it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import anyio
import msgspec
import typer
from anyio.abc import TaskGroup

from jobledger.cli import options
from jobledger.cli.command import CREATES, ROWS, WAITS, Cli, command
from jobledger.cli.errors import DONE
from jobledger.cli.exposure import LOOPBACK
from jobledger.cli.groups import TOP
from jobledger.cli.logs import log_as_process
from jobledger.cli.output import Output
from jobledger.cli.processes import gateway_options as own
from jobledger.cli.processes import login_options as login
from jobledger.cli.processes import options as process
from jobledger.cli.processes.entrance import Entrance
from jobledger.cli.processes.settings import GATEWAY
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import StopAction, data_folder, load_tasks, stoppable, until_closed
from jobledger.cli.session import until_eof as when_stdin_ends
from jobledger.ledger import TaskRegistry
from jobledger.ledger.access.account import ACCOUNT_FILE
from jobledger.ledger.model.errors import ConfigurationError, NoDataFolderError
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.workers.process import log_what_nobody_catches, tune_collector
from jobledger.workers.processes.child import python
from jobledger.workers.processes.parent import Parent
from jobledger.workers.supervision.supervisor import Supervisor, SupervisorConfig

if TYPE_CHECKING:
    from jobledger.gateway.access.keys import AccessSettings
    from jobledger.gateway.process.gateway_process import Process
    from jobledger.gateway.process.server import Settings
    from jobledger.gateway.process.worker_child import WebhookHost
    from jobledger.gateway.shares import Kind, Share

DEFAULT_PORT: Final = 8080
_SESSION_KEYS: Final = "gateway-session-keys"  #: name of a file in the data folder
#: Modules of the libraries that the extra `gateway` installs.
_NEEDED: Final = ("httptools", "httpx", "itsdangerous", "jinja2", "starlette", "uvicorn")


def missing() -> str:
    """Return a sentence on missing libraries, "" if the gateway can run."""
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return f"the gateway needs {', '.join(lacking)}: install them with pip install 'jobledger[gateway]'"


class _Flags(NamedTuple):
    schedules: bool
    project: bool
    keeps: bool
    until_eof: bool


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    access: AccessSettings
    tasks: TaskRegistry | None
    flags: _Flags
    hosting: WebhookHost | None
    secrets: Secrets
    parent: Parent | None


@command(TOP, "gateway", takes=(*ROWS, CREATES, WAITS), settings=GATEWAY)
def gateway(
    cli: Cli,
    *,
    port: own.Port = DEFAULT_PORT,
    host: own.Host = LOOPBACK,
    app: options.App = None,
    grace: own.Grace = 10.0,
    https_cert: own.HttpsCert = None,
    https_key: own.HttpsKey = None,
    behind_proxy: own.BehindProxy = None,
    allow_host: own.AllowHost = None,
    allow_origin: own.AllowOrigin = None,
    trust_user_header: own.TrustUserHeader = "",
    trust_from: own.TrustFrom = None,
    people: own.People = None,
    session_key: own.SessionKey = None,
    session_age: own.SessionAge = 12 * 3600.0,
    oidc_issuer: login.OidcIssuer = "",
    oidc_client_id: login.OidcClientId = "",
    oidc_client_secret_file: login.OidcClientSecret = None,
    oidc_user_claim: login.OidcUserClaim = "email",
    quota: login.Quotas = None,
    share: login.Shares = None,
    processes: own.Processes = None,
    allow_target: own.AllowTarget = None,
    key_file: own.KeyFile = None,
    secrets: own.SecretsFolder = None,
    no_deliveries: own.NoDeliveries = False,
    keeper: own.Keeper = False,
    no_projector: own.NoProjector = False,
    no_access_log: own.NoAccessLog = False,
    no_schedules: process.NoSchedules = False,
    until_eof: process.UntilEof = False,
    supervised: Annotated[str | None, typer.Option("--supervised", metavar="NAME:FD", hidden=True)] = None,
    listening: Annotated[int | None, typer.Option("--listening", metavar="FD", min=0, hidden=True)] = None,
) -> Awaitable[int | None]:
    """Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.

    The first signal ends streams and waits, and lets running requests finish (--grace); a second stops at once.
    """
    plan = _Plan(
        access=_begin(access_log=not no_access_log)(
            session_key=session_key or data_folder() / _SESSION_KEYS,
            account_key=_account_file(),
            session_s=session_age,
            **_each(hosts=allow_host, origins=allow_origin, trust_from=trust_from, behind_proxy=behind_proxy),
            user_header=trust_user_header,
            people=people,
            oidc=login.provider(oidc_issuer, oidc_client_id, oidc_client_secret_file, oidc_user_claim),
            quotas=login.quotas(quota),
        ),
        settings=_settings(host, port, listening, grace, (https_cert, https_key), login.shares(share)),
        tasks=load_tasks(app) if options.split(app) else None,
        flags=_Flags(not no_schedules, not no_projector, keeper, until_eof),
        hosting=None if no_deliveries else _hosting(allow_target, key_file),
        secrets=Secrets(os.environ, key_file, secrets),
        parent=None if supervised is None else Parent(supervised),
    )
    return _gateway(cli, plan) if processes is None or plan.parent else _supervise(cli, plan, processes)


def _account_file() -> Path | None:
    """Return the file of the account's key; None without a data folder: then people use keys or a proxy."""
    try:
        return data_folder() / ACCOUNT_FILE
    except NoDataFolderError:
        return None


def _each(**given: list[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the values of options that may be repeated or separated by commas, as tuples."""
    return {name: tuple(options.split(each)) for name, each in given.items()}


def _begin(*, access_log: bool) -> type[AccessSettings]:
    """Set up the log of a process, and refuse to begin without the extra; return a class that needs it."""
    log_as_process()
    if not access_log:
        logging.getLogger("jobledger.gateway.access").setLevel(logging.WARNING)
    if sentence := missing():
        raise ConfigurationError(sentence)
    from jobledger.gateway.access.keys import AccessSettings  # noqa: PLC0415

    return AccessSettings


def _settings(  # noqa: PLR0917 - values of options
    host: str,
    port: int,
    listening: int | None,
    grace_s: float,
    https: tuple[Path | None, Path | None],
    shares: dict[Kind, Share],
) -> Settings:
    from jobledger.gateway.process.server import Settings  # noqa: PLC0415

    certificate, key = https
    return Settings(
        host=host,
        port=port,
        listening=listening,
        grace_s=grace_s,
        https_cert=certificate,
        https_key=key,
        shares=shares,
    )


def _hosting(allow_target: list[str] | None, key_file: Path | None) -> WebhookHost:
    from jobledger.gateway.process.worker_child import WebhookHost  # noqa: PLC0415

    return WebhookHost(allow_targets=tuple(options.split(allow_target)), key_file=key_file)


async def _gateway(cli: Cli, plan: _Plan) -> None:
    from jobledger.gateway.access.exposure import may_listen  # noqa: PLC0415
    from jobledger.gateway.access.keys import opened_access  # noqa: PLC0415
    from jobledger.gateway.process.gateway_process import Process  # noqa: PLC0415
    from jobledger.gateway.process.listener import inherited, is_loopback, listen  # noqa: PLC0415
    from jobledger.gateway.process.requests import BULK_APPENDS_MAX, SILENT_S_MAX  # noqa: PLC0415

    tune_collector()
    settings = plan.settings
    cli.target = msgspec.structs.replace(
        cli.target,
        enqueue_in_flight_max=BULK_APPENDS_MAX,
        append_timeout_s=SILENT_S_MAX,
        settings={**cli.target.settings, "room_timeout_s": 0.0},
    )
    if plan.parent is not None:
        # The supervisor made the ledger, and restarts us: a ledger deleted since must not be made again, as it would be
        # empty.
        cli.target = msgspec.structs.replace(cli.target, create=False, wait_for_server_s=0.0)
    spoken = contextlib.nullcontext() if plan.parent is None else plan.parent.connected()
    async with stoppable() as stopping, spoken, cli.ledger() as ledger:
        with (
            listen(settings.host, settings.port, is_shared=plan.parent is not None)
            if settings.listening is None
            else inherited(settings.listening)
        ) as bound:
            log_what_nobody_catches(ledger.connection.loop)
            path = await cli.rows(ledger).path()
            async with opened_access(ledger, plan.access, is_loopback=is_loopback(bound)) as access:
                may_listen(
                    is_loopback=is_loopback(bound),
                    has_login=access.has_login,
                    tls=settings.https_cert is not None,
                    behind_proxy=bool(plan.access.behind_proxy),
                )
                made = Process(
                    ledger,
                    path,
                    access,
                    settings,
                    tasks=plan.tasks,
                    schedules=plan.flags.schedules,
                    project=plan.flags.project,
                    secrets=plan.secrets,
                    hosting=plan.hosting,
                    keeps=plan.flags.keeps,
                )
                async with anyio.create_task_group() as group:
                    _heed(group, made, cli.output, stopping, plan)
                    group.start_soon(until_closed, ledger)
                    await made.run(
                        bound,
                        lambda: _say_ready(cli.output, bound, path, plan, takes_account=access.takes_account),
                    )
                    group.cancel_scope.cancel()


def _heed(
    group: TaskGroup,
    made: Process,
    output: Output,
    stopping: StopAction,
    plan: _Plan,
) -> None:
    """Stop when a signal, the supervisor or the end of stdin asks for it."""
    once = functools.cache(made.stop)  # a second call would stop it at once

    def at_once() -> None:
        made.stop()
        made.stop()
        group.cancel_scope.cancel()

    def on_signal() -> None:
        if once.cache_info().currsize:
            at_once()
            return
        output.note("stopping: running requests may finish (--grace); a second signal stops at once")
        once()

    stopping.act = on_signal if plan.parent is None else once
    if plan.parent is not None:
        # `jobledger up` gave us its socket: at its end the projection's follower ends, too, and maybe the server.
        gone = once if plan.settings.listening is None else at_once
        group.start_soon(plan.parent.watch, once, at_once, gone)
    if plan.flags.until_eof:
        group.start_soon(when_stdin_ends, at_once)


def _say_ready(output: Output, bound: socket.socket, path: Path, plan: _Plan, *, takes_account: bool) -> None:
    entrance = _entrance(bound, plan, takes_account=takes_account)
    if plan.parent is not None:
        plan.parent.ready(msgspec.to_builtins(entrance))
        return
    with output.telling():
        if output.as_json:
            output.object(msgspec.to_builtins(entrance), projection=str(path), pid=os.getpid())
        else:
            output.say(f"the gateway is ready at {entrance.gateway}; stop it with Ctrl-C", style="bold green")
            entrance.say(output)


def _entrance(bound: socket.socket, plan: _Plan, *, takes_account: bool) -> Entrance:
    from jobledger.gateway.process.listener import url_of  # noqa: PLC0415

    url = url_of(bound, https=plan.settings.https_cert is not None)
    return Entrance(gateway=url, key_file=str(plan.access.account_key) if takes_account else "")


async def _supervise(cli: Cli, plan: _Plan, processes: int) -> int:
    """Keep several processes on one port; the first of them follows the ledger for all."""
    from jobledger.gateway.process.listener import is_loopback, listen  # noqa: PLC0415
    from jobledger.ledger.access.keys import all_keys  # noqa: PLC0415

    settings = plan.settings
    code = DONE  # when a signal comes before the supervisor runs
    async with stoppable() as stopping, anyio.create_task_group() as group:
        # This socket is bound, but never listens: it reserves the port while no process has it, and finds a port for 0.
        with listen(settings.host, settings.port, is_shared=True) as bound:
            async with cli.ledger() as ledger:  # waits for the server and makes the ledger once for all
                takes_account = not await all_keys(ledger.log)
            account = plan.access.account(
                is_loopback=is_loopback(bound)
            )  # the file is made here, before any process reads it
            entrance = _entrance(bound, plan, takes_account=takes_account and account is not None)
            supervisor = Supervisor(
                _no_lease,
                _command(settings.host, bound.getsockname()[1]),
                SupervisorConfig(processes=processes, grace_s=settings.grace_s, what="gateway process"),
                environment=environment_of_child(cli.target),
                of_place=lambda place: (
                    {"JOBLEDGER_NO_PROJECTOR": "1", "JOBLEDGER_NO_DELIVERIES": "1"} if place else {}
                ),
            )

            def at_once() -> None:
                supervisor.stop()
                supervisor.stop()

            stopping.act = supervisor.stop
            if plan.flags.until_eof:
                group.start_soon(when_stdin_ends, at_once)
            with cli.output.telling():
                if cli.output.as_json:
                    cli.output.object(msgspec.to_builtins(entrance), processes=processes, pid=os.getpid())
                else:
                    cli.output.say(
                        f"{processes} processes of the gateway answer at {entrance.gateway}; stop with Ctrl-C"
                    )
                    entrance.say(cli.output)
            code = await supervisor.run()
            group.cancel_scope.cancel()
    return code


async def _no_lease(_identity: str) -> bool:
    return False


def _command(host: str, port: int) -> list[str]:
    """Return the command of one process: our own command with the reserved address, and without --until-eof."""
    own_words = [word for word in sys.argv[1:] if word != "--until-eof"]
    return python("jobledger.cli", *own_words, "--host", host, "--port", str(port))
