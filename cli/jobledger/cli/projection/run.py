"""`jobledger projection run`: follow the ledger with the projection, or with a user's read model."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Any, Final, cast

import anyio
import msgspec
import typer

from jobledger.admin.projection_files import READ_MODELS, projection_path
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import PROJECTION
from jobledger.cli.output import Output
from jobledger.cli.server_options import is_typed
from jobledger.cli.session import (
    data_folder,
    import_path_begins_here,
    until_closed,
    watch_signals,
)
from jobledger.ledger import Ledger
from jobledger.projections import (
    NotAProjectionError,
    OlderSchemaError,
    Position,
    ProjectionError,
    ProjectionFileError,
    Projector,
    ReadModel,
    ReadModelLayout,
    Snapshots,
    files,
    rebuild,
)

# `jobledger projection run MODULE:Class`: a user's own read model, followed beside ours in a file of its own.

_REBUILD: Final = "`jobledger projection rebuild`"
_BUSY_TIMEOUT_S: Final = 5.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `projection run MODULE:Class`."""

    model: str
    file: Path | None
    rebuild: bool
    once: bool


def load_model(spec: str) -> ReadModelLayout:
    """Import `MODULE:Class` and make its read model.

    Raises: UsageError, ReadModelDefinitionError; each says what is wrong with the class.
    """
    module_name, colon, name = spec.rpartition(":")
    if not colon or not module_name or not name.isidentifier():
        raise UsageError(
            f"{spec[:80]!r} names no class: give one as MODULE:Class, as in myapp.reports:Revenue"
        )
    found = getattr(_imported(module_name), name, None)
    if found is None:
        raise UsageError(f"module {module_name!r} has no class {name!r}")
    if not inspect.isclass(found):
        raise UsageError(f"{spec} is a {type(found).__name__}, not a class")
    model = _called(f"{spec} cannot be made without arguments", found)
    return ReadModelLayout(cast("ReadModel", model), spec)


def _imported(name: str) -> Any:
    """Import a module; the folder of a file goes on the import path first, as with `python file.py`."""
    import_path_begins_here()
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"there is no file {name[:200]!r}")
        sys.path.insert(0, str(Path(name).parent.resolve()))
        name = Path(name).stem
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name[:80]!r} is not the name of a module: give package.module or a .py file")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {name!r} on the import path: is this the right folder?"
            ) from error
        raise UsageError(_failure(f"module {name} cannot be imported", error)) from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise UsageError(_failure(f"module {name} cannot be imported", error)) from error


def _called(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # the user's class may raise anything
        raise UsageError(_failure(what, error)) from error


def _failure(what: str, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{what}: {type(error).__name__}: {error}{place}"


@contextlib.contextmanager
def _in_its_words(spec: str) -> Generator[None, None, None]:
    """Replace the rebuild command in errors of the file by the command that rebuilds this model."""
    try:
        yield
    except ProjectionError as error:
        error.args = (str(error).replace(_REBUILD, f"`jobledger projection run {spec} --rebuild`"),)
        raise


async def run_read_model(cli: Cli, plan: Plan) -> None:
    """Bring the read model's file up to the ledger's head, and follow until a signal unless `once`."""
    layout, output = load_model(plan.model), cli.output
    async with cli.ledger() as ledger, anyio.create_task_group() as group:
        await group.start(watch_signals, group.cancel_scope.cancel)
        group.start_soon(until_closed, ledger)
        path = plan.file or await _default_path(ledger, layout)
        with _in_its_words(plan.model):
            outdated = _is_outdated(path, layout)  # checked first: it refuses another model's file
            if plan.rebuild or outdated:
                with output.progress("rebuilding") as progress:
                    await rebuild(ledger.log, path, progress=progress, layout=layout)
            with Projector(ledger.log, path, layout=layout) as projector:
                with output.progress("reading the ledger") as progress:
                    position = await projector.catch_up(progress=progress)
                _tell(output, layout, path, position, plan)
                if not plan.once:
                    async with ledger.reader_leases.held("projector"):
                        await projector.run()
        group.cancel_scope.cancel()


async def _default_path(ledger: Ledger, layout: ReadModelLayout) -> Path:
    ours = await projection_path(ledger, data_folder)
    born = ours.stem.rpartition(".v")[0]  # the name without the version of our schema
    return ours.parent.with_name(READ_MODELS) / f"{born}-{layout.model.name}.db"


def _is_outdated(path: Path, layout: ReadModelLayout) -> bool:
    """Return whether a file exists that only a rebuild can bring up to date.

    Raises: NotAProjectionError for a file of another model or program, which a rebuild must not replace; other errors
        that are not about the file.
    """
    if not path.exists():
        return False
    try:
        files.open_reader(path, busy_timeout_s=_BUSY_TIMEOUT_S, layout=layout).close()
    except NotAProjectionError:
        raise
    except OlderSchemaError:
        return True
    except ProjectionFileError:
        return False  # a damaged or newer file: the projector refuses it without a rebuild
    return False


def _tell(output: Output, layout: ReadModelLayout, path: Path, position: Position, plan: Plan) -> None:
    at = position.stream_sequence
    if output.as_json:
        body = {
            "read_model": layout.model.name,
            "version": layout.model.version,
            "file": str(path),
            "position": at,
        }
        output.object(body)
    elif plan.once:
        output.say(f"{path} holds {layout.model.name} up to stream sequence {at:,}")
    else:
        output.say(
            f"{path} holds {layout.model.name} and follows the ledger from stream sequence {at:,}; stop with Ctrl-C"
        )


@command(PROJECTION, "run", takes=ROWS)
async def run_projector(
    cli: Cli,
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:Class",
            help="A read model of your own, instead of the projection; a .py file may be named.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Exit when the ledger's end is reached.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", metavar="", help="Rebuild the read model from the first event.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="SQLite file of the read model. (default: one per ledger and model in your data folder)",
        ),
    ] = None,
) -> None:
    """Follow the ledger and keep the projection, or a read model of your own, up to date until Ctrl-C."""
    if model is not None:
        if is_typed(cli.line, "projection"):
            raise UsageError("--projection names the projection's file: for a read model it is --file")
        await run_read_model(cli, Plan(model=model, file=file, rebuild=rebuild, once=once))
        return
    if rebuild or file is not None:
        instead = "`jobledger projection rebuild`" if rebuild else "--projection"
        raise UsageError(
            f"{'--rebuild' if rebuild else '--file'} is for a read model, as in MODULE:Class; here it is {instead}"
        )
    await _follow(cli, once=once)


async def _follow(cli: Cli, *, once: bool) -> None:
    output = cli.output
    async with cli.ledger() as ledger, anyio.create_task_group() as group:
        await group.start(watch_signals, group.cancel_scope.cancel)
        group.start_soon(until_closed, ledger)
        rows = cli.rows(ledger)
        position, path = await rows.catch_up(), await rows.path()
        if position.missing:
            output.note(position.missing)
        with contextlib.nullcontext() if once else output.telling():
            if output.as_json:
                output.object({"projection": str(path), "position": position.stream_sequence})
            else:
                begins = "holds the ledger up to" if once else "follows the ledger from"
                end = "" if once else "; stop with Ctrl-C"
                output.say(f"{path} {begins} stream sequence {position.stream_sequence:,}{end}")
        if not once:
            with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
                async with ledger.reader_leases.held("projector"):
                    await projector.run()
        group.cancel_scope.cancel()
