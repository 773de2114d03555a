"""`@command`: makes a function a command of the CLI, and adds the options that commands share."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.help import Command
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.server_options import ACCESS, SERVER_OPTIONS, is_typed
from jobledger.ledger.config import DEFAULT_URL, LedgerConfig
from jobledger.ledger.model.errors import LedgerNotFoundError, NoDataFolderError
from jobledger.ledger.nats.access import Access
from jobledger.ledger.nats.addresses import holds_secret
from jobledger.ledger.variables import variable
from jobledger.projections.filters import SaidFilter

# Modules that read a projection, connect or run a loop are imported where they are used, so that `--help` takes a third
# of the time.
if TYPE_CHECKING:
    from jobledger.admin.rows import Rows
    from jobledger.ledger.client import Ledger

F = TypeVar("F", bound=Callable[..., Awaitable[int | None] | int | None])

#: The options that commands share: parameter, option, default.
_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "projection": (options.ProjectionFile, None),
    "ledger_bytes_max": (options.LedgerBytesMax, None),
    "wait_for_server_s": (options.WaitForServer, 30.0),
    "as_json": (options.Json, False),
    **{name: (options.SAID[name], None) for name in SaidFilter.__struct_fields__},
    **{name: (kind, None) for name, kind in SERVER_OPTIONS.items()},
}
OFFLINE: Final = ("as_json",)  #: options of a command that needs no server
#: Options of a command that connects; `command` adds --context and the options of `ACCESS`.
LEDGER: Final = ("url", "environment", "as_json")
ROWS: Final = ("projection", *LEDGER)  #: for a command that reads the projection, even if only to find a job
#: Options of a command that chooses jobs by the words of their enqueuers; with the options of `ROWS`.
CHOOSES: Final = (*SaidFilter.__struct_fields__, *ROWS)
CREATES: Final = "ledger_bytes_max"  #: option of commands that make a ledger if there is none
WAITS: Final = "wait_for_server_s"  #: option of a process that may begin before its server


#: The parameter through which a function gets typer's context.
_LINE: Final = inspect.Parameter("line", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


class Cli:
    """The shared options of one command, and its output."""

    def __init__(
        self,
        line: typer.Context,
        *,
        url: str | None = None,
        environment: str | None = None,
        context: str | None = None,
        ledger_bytes_max: int | None = None,
        wait_for_server_s: float = 0.0,
        create: bool = False,
        projection: Path | None = None,
        as_json: bool = False,
        settings: Mapping[str, Any] = {},
        variables: Mapping[str, str] = {},
        **others: Any,
    ) -> None:
        """Check the options. `line`: typer's context; `variables`: these settings as variables, for another command.

        `others`: the fields of `SaidFilter` and those of `Access`.

        Raises: UsageError, ConfigurationError.
        """
        from jobledger.cli.session import Target  # noqa: PLC0415

        said: dict[str, Any] = {name: others.pop(name, None) for name in SaidFilter.__struct_fields__}
        said["metadata"] = tuple(pairs(said["metadata"] or [], "--metadata").items())
        of_ledger = settings.keys() & {*LedgerConfig.__struct_fields__}
        self.target = Target(
            url=DEFAULT_URL if url is None else url,
            environment=environment or "",
            ledger_bytes_max=ledger_bytes_max,
            wait_for_server_s=wait_for_server_s,
            create=create,
            settings={name: settings[name] for name in of_ledger},
            setting_variables=dict(variables),
            access=Access(**{name: value for name, value in others.items() if value}),
        )
        self.worker = {  #: arguments of `WorkerConfig`
            name: value for name, value in settings.items() if name not in of_ledger
        }
        self.line = line
        self.context = context  #: context of the `nats` command, if it names the server
        self.projection = projection  #: the file that the option names
        self.output = Output(as_json=as_json)
        self.said = SaidFilter(**said)  #: choice of jobs by the words of their enqueuers

    def place_words(self) -> Iterator[str]:
        """Yield the options that name the ledger and its projection, for a command that a person may type next."""
        target = self.target
        if self.context:
            yield f"--context {shlex.quote(self.context)}"
        elif target.url != DEFAULT_URL and not holds_secret(target.url):
            yield f"--url {shlex.quote(target.url)}"
        if target.environment:
            yield f"--environment {shlex.quote(target.environment)}"
        if self.projection is not None:
            yield f"--projection {shlex.quote(str(self.projection))}"

    @contextlib.asynccontextmanager
    async def ledger(self, *, known: str | None = None) -> AsyncGenerator[Ledger, None]:
        """Connect for the length of a block.

        Raises: as `opened`; a LedgerNotFoundError also has a sentence on a former ledger: `known`, or one from a
            projection on this machine.
        """
        from jobledger.cli.session import opened  # noqa: PLC0415
        from jobledger.ledger.nats.jetstream_client import load_jetstream_at_first_use  # noqa: PLC0415

        load_jetstream_at_first_use()
        async with contextlib.AsyncExitStack() as stack:
            try:
                ledger = await stack.enter_async_context(opened(self.target))
            except LedgerNotFoundError as error:
                former = known or self.former_ledger()
                raise error if former is None else error.with_more(former) from None
            yield ledger

    def former_ledger(self, now: Path | None = None) -> str | None:
        """Return a sentence on a former ledger, if a projection of it is left on this machine; else None.

        `now`: the projection of the present ledger, if there is one.
        """
        from jobledger.admin.projection_files import PROJECTIONS, files_of, former_ledger  # noqa: PLC0415
        from jobledger.cli.session import data_folder  # noqa: PLC0415

        url, environment = self.target.url, self.target.environment
        if self.projection is not None:
            return former_ledger(environment, [self.projection], now=now)
        with contextlib.suppress(NoDataFolderError):  # no home folder, so no projections
            return former_ledger(
                environment, files_of(data_folder() / PROJECTIONS, url, environment), now=now
            )
        return None

    def rows(self, ledger: Ledger) -> Rows:
        """Return the ledger's projection, which shows its progress to a person."""
        from jobledger.admin.projection_files import projection_path  # noqa: PLC0415
        from jobledger.admin.rows import Rows  # noqa: PLC0415
        from jobledger.cli.session import data_folder  # noqa: PLC0415

        def on_first(path: Path) -> None:
            if (former := self.former_ledger(path)) is not None:
                self.output.note(former)

        return Rows(
            ledger,
            lambda: projection_path(ledger, data_folder, self.projection),
            progress=self.output.progress,
            on_first=on_first,
        )


def command(
    app: typer.Typer,
    name: str,
    *,
    takes: Sequence[str] = LEDGER,
    settings: Mapping[str, options.Setting] = {},
    order: Mapping[str, Any] = {},
) -> Callable[[F], F]:
    """Register a function whose first parameter is a `Cli`; the others are its own arguments and options.

    A coroutine is run to its end, also one that a plain function returns. (Such a function may import an application or
    read stdin before it returns: Ctrl-C ends that at once, which it could not within a loop.) A returned int is the
    exit code. A parameter that is an `OptionGroup` stands for the options in it. `takes`: the shared options of the command; other fields of its `Cli` have their defaults. A command that
    connects has all of `SERVER_OPTIONS`. `settings`: options for fields of configurations. `order`: options that take
    the place of the function's parameter `order`, which gets their values by name.
    """
    if CREATES in takes:
        settings = {**settings, "replicas": options.REPLICAS}

    def register(function: F) -> F:
        parameters, groups = _own_parameters(function, order)
        connects = "environment" in takes
        shared = (*takes, "context", *ACCESS) if connects else takes
        parameters += [_option(key, *_SHARED[key]) for key in shared]
        parameters += [_option(key, each.option) for key, each in settings.items()]

        def told(line: typer.Context, **given: Any) -> Any:
            from jobledger.cli.session import run  # noqa: PLC0415

            of_context = _follow_context(given, line) if connects else {}
            typed = {key: value for key in settings if (value := given.pop(key)) is not None}
            fields = {key: settings[key].value(value) for key, value in typed.items()}
            variables = {settings[key].variable: settings[key].text(fields[key]) for key in fields}
            cli = Cli(
                line,
                create=CREATES in takes,
                settings=of_context | fields,
                variables={variable(key): value for key, value in of_context.items()} | variables,
                **{key: given.pop(key) for key in shared},
            )
            if order:
                given["order"] = {key: given.pop(key) for key in order}
            for key, group in groups.items():
                given[key] = group(**{each: given.pop(each) for each in group.__struct_fields__})
            answer = _called(function, cli, given)
            return run(lambda: answer) if isinstance(answer, Awaitable) else answer

        told.__doc__ = function.__doc__
        parameters.insert(0, _LINE)
        told.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        told.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, cls=Command)(told)
        return function

    return register


def _own_parameters(
    function: Callable[..., Any], order: Mapping[str, Any]
) -> tuple[list[inspect.Parameter], dict[str, type[options.OptionGroup]]]:
    """Return the parameters of a command's own options, and the groups of them by the function's parameters."""
    _, *own = inspect.signature(function).parameters.values()
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[options.OptionGroup]] = {}
    for each in own:
        kind = hints[each.name]
        if order and each.name == "order":
            parameters += [_option(key, option) for key, option in order.items()]
        elif isinstance(kind, type) and issubclass(kind, options.OptionGroup):
            groups[each.name] = kind
            parameters += _options_of(kind)
        else:
            parameters.append(each.replace(annotation=kind, kind=each.KEYWORD_ONLY))
    return parameters, groups


def _called(
    function: Callable[..., Awaitable[int | None] | int | None], cli: Cli, given: dict[str, Any]
) -> Awaitable[int | None] | int | None:
    """Call a command; for a plain function, which has no loop of `run`, turn the garbage collector on here."""
    if not inspect.iscoroutinefunction(function):
        gc.enable()
    return function(cli, **given)


def _options_of(group: type[options.OptionGroup]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [_option(each.name, hints[each.name], each.default) for each in msgspec.structs.fields(group)]


def _option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _follow_context(given: dict[str, Any], line: typer.Context) -> dict[str, str]:
    """Fill options that were not given from the context of the `nats` command; drop it if only --url was typed.

    As in `connect`, the command line comes before environment variables. Returns the context's settings other than
    server and credentials.

    Raises: UsageError, ConfigurationError.
    """
    name = given["context"]
    if name is None:
        return {}
    from jobledger.cli.errors import UsageError  # noqa: PLC0415 - most commands name no context
    from jobledger.ledger.nats.contexts import settings_of_context  # noqa: PLC0415

    names = ("url", *ACCESS)
    is_first, is_other_first = is_typed(line, "context"), is_typed(line, "url")
    if is_other_first and not is_first:
        given["context"] = None
        return {}
    if is_other_first or (given["url"] is not None and not is_first):
        raise UsageError(
            "--context and --url (or JOBLEDGER_CONTEXT and JOBLEDGER_URL) each name a server: leave one of them out"
        )
    found = {"url": DEFAULT_URL, **settings_of_context(name, os.environ)}
    told = {each: given[each] for each in names if not is_first or is_typed(line, each)}
    given |= {each: told.get(each) or found.get(each) for each in names}
    return {
        each: value
        for each, value in found.items()
        if each not in names and not os.environ.get(variable(each))
    }
