"""The program `jobledger`: its commands, and the way from an error to a sentence and an exit code."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any, Final, TextIO

import typer
from typer.core import TyperGroup

from jobledger.cli.commands import PANELS, add_commands, is_command, named_by
from jobledger.cli.commit import commit_words
from jobledger.cli.completion import completed_words, is_completing
from jobledger.cli.errors import DONE, INTERRUPTED, StoppedBySignalError, first_of, report
from jobledger.cli.exit import exit_at_once
from jobledger.cli.help import COLUMNS_MAX, Group
from jobledger.cli.server_options import SERVER_OPTIONS, leading
from jobledger.cli.streams import LogFormat, is_broken, let_go
from jobledger.ledger.model.version import VERSION

#: Switches that may be anywhere on the line.
_SWITCHES: Final = ("--verbose", "--debug")
_LOG_FORMAT: Final = "--log-format"
_IDLE_THREADS_END_S: Final = 0.1
#: The commands in the order of `jobledger --help`.
_PLACES: Final = {name: place for place, name in enumerate(chain.from_iterable(PANELS.values()))}


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        sys.stdout.write(f"jobledger {VERSION}{commit_words()}\n")
        raise typer.Exit


def _root(
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", metavar="", help="Log what happens, to stderr.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", metavar="", envvar="JOBLEDGER_DEBUG", help="Log more, and show tracebacks of errors."
        ),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            _LOG_FORMAT,
            envvar="JOBLEDGER_LOG_FORMAT",
            metavar="FORMAT",
            help="What a line of the log is, on stderr: text or json.",
        ),
    ] = "text",
    _version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    from jobledger.cli.logs import set_up_logs  # noqa: PLC0415 - the help of all commands logs nothing

    set_up_logs(verbose=verbose, debug=debug, log_format=log_format)


def _root_with_server() -> Callable[..., None]:
    """Return the root callback; its help lists the options of the server, which `run` moves behind the command."""
    own = inspect.signature(_root, eval_str=True).parameters.values()
    server = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in SERVER_OPTIONS.items()
    ]

    def root(**given: Any) -> None:
        _root(**{name: value for name, value in given.items() if name not in SERVER_OPTIONS})

    root.__signature__ = inspect.Signature([*own, *server])  # type: ignore[attr-defined]
    root.__annotations__ = {each.name: each.annotation for each in (*own, *server)}
    return root


def program(words: Sequence[str] | None = None) -> TyperGroup:
    """Return the command line with the commands that these words need; with every command for None."""
    app = typer.Typer(
        name="jobledger",
        cls=Group,
        rich_markup_mode=None,
        help="An event-sourced job ledger on NATS JetStream: know, not guess, what happened to a job.",
        epilog="Options of the server may stand before a command or behind it, and each has a variable: --tls-ca is "
        "JOBLEDGER_TLS_CA. Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 cannot reach the server. "
        "Commands act as an operator, who may do everything; events name the account that runs them.",
        callback=_root_with_server(),
        # Only completion and the root's own options need this, and it imports modules that no command uses.
        add_completion=is_completing() or not words or words[0].startswith("-"),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": COLUMNS_MAX},
    )
    if is_completing():
        words = _switches_apart(completed_words())[1]
        words = words[leading(words) :]
    add_commands(app, words)
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    command.commands = dict(sorted(command.commands.items(), key=lambda each: _PLACES[each[0]]))
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    _leave_threads_behind(code)
    if is_broken(sys.stdout):
        let_go(sys.stdout)
    sys.exit(code)


def _leave_threads_behind(code: int) -> None:
    """Exit at once when a task's thread is still busy: the interpreter would wait for it for ever.

    The job was given back or is taken over, so nothing that the thread still does will be recorded.
    """
    deadline = time.monotonic() + _IDLE_THREADS_END_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                exit_at_once(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error is one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        _tolerate_any_text(stream)
    switches, others = _switches_apart(arguments)
    others = _server_behind_command(others)
    words = switches + others
    try:
        code = _command_for(others).main(args=words, prog_name="jobledger", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as error:  # typer's exit if the reader of stdout has gone
        return (
            _after_broken_pipe() if isinstance(error.__context__, BrokenPipeError) else int(error.code or 0)
        )
    except BrokenPipeError:
        return _after_broken_pipe()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        return _after_error(error, words)
    return code if isinstance(code, int) else DONE


def _command_for(words: Sequence[str]) -> TyperGroup:
    path = named_by(words)
    return _built(path) if path and not is_completing() else program(words)


#: Cached, so that a process that runs many commands, such as a test run, reads their signatures once.
_built: Final = functools.cache(program)


def _after_error(group: BaseException, words: Sequence[str]) -> int:
    error = first_of(group)
    if isinstance(error, BrokenPipeError):
        return _after_broken_pipe()
    if isinstance(error, KeyboardInterrupt | StoppedBySignalError):
        return INTERRUPTED
    if "--debug" in words or os.environ.get("JOBLEDGER_DEBUG", "") not in ("", "0"):
        traceback.print_exception(group)
    return report(error, as_json="--json" in words)


def _after_broken_pipe() -> int:
    """Drop the rest of the answer, whose reader has gone, as with `| head`; the interpreter's end drops it, too."""
    let_go(sys.stdout)
    return DONE


def _switches_apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the switches that are the same for all commands, and the words of the command."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    found: list[str] = []
    others: list[str] = []
    before = ""
    for word in words[:end]:
        is_switch = word in (*_SWITCHES, _LOG_FORMAT) or word.startswith(f"{_LOG_FORMAT}=")
        (found if is_switch or before == _LOG_FORMAT else others).append(word)
        before = word
    return found, others + words[end:]


def _server_behind_command(words: list[str]) -> list[str]:
    """Return the words with options of the server moved behind the command; without a command they are left out."""
    count = leading(words)
    server, rest = words[:count], words[count:]
    if server and rest[:1] == ["--"]:  # `--` ends the options before the command
        rest = rest[1:]
    path = named_by(rest)
    if not server or not rest:
        return words
    # A group lists its commands without a server, and words that name no command are refused anyway.
    return [*path, *server, *rest[len(path) :]] if is_command(path) else rest


def _tolerate_any_text(stream: TextIO) -> None:
    """Write characters that the terminal's encoding lacks as escapes instead of failing half-way through an answer."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
