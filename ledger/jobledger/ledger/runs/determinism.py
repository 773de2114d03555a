"""A check of a workflow's code when it is decorated, for calls outside of steps whose results may differ by attempt.

It warns and refuses nothing. It knows only syntax: it follows names through imports and aliases, but not calls of the
application's own functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

#: Source with more characters than this is not checked, because decorating a function must stay quick.
_SOURCE_MAX: Final = 200_000

_NOW: Final = "use `await run.now()`, which is recorded"
_SLEEP: Final = "use `await run.sleep(...)`, which holds no worker"
_UUID: Final = "use `await run.uuid()`, which is recorded"
_RANDOM: Final = "use `await run.random()`, which is recorded, or a step"
_OUTSIDE: Final = "read it in a step, or give it to the run as an argument"
_STEP: Final = "do it in a step: `await run.step(...)`"

#: Replacements, by the whole name of the called thing or by its module.
_CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
            "time.time",
            "time.time_ns",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.perf_counter_ns",
            "time.localtime",
            "time.gmtime",
            "time.ctime",
        ),
        _NOW,
    ),
    "time.sleep": _SLEEP,
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4"), _UUID),
    **dict.fromkeys(("random", "secrets", "numpy.random", "os.urandom"), _RANDOM),
    **dict.fromkeys(("os.getenv", "os.getpid", "os.environ"), _OUTSIDE),
    **dict.fromkeys(
        (
            "open",
            "io.open",
            "input",
            "os.system",
            "os.popen",
            "asyncio.open_connection",
            "asyncio.create_subprocess_exec",
            "asyncio.create_subprocess_shell",
            "aiohttp",
            "aiosqlite",
            "asyncpg",
            "boto3",
            "ftplib",
            "http.client",
            "httpx",
            "psycopg",
            "psycopg2",
            "pymongo",
            "pymysql",
            "redis",
            "requests",
            "smtplib",
            "socket",
            "sqlite3",
            "subprocess",
            "urllib.request",
            "urllib3",
        ),
        _STEP,
    ),
}
#: Methods of a run whose first argument is a function that is called as a step.
_TAKES_STEP: Final = frozenset({"step", "each", "on_failure"})
_MARKS_STEP: Final = frozenset({"step", "task"})


class NondeterminismWarning(UserWarning):
    """The code of a workflow does something between its steps whose result may differ when the run goes on elsewhere.

    Do it in a step, or use the method of `Run` for it. `warnings.filterwarnings("ignore", category=...)` silences it.
    """


def warn_of_nondeterminism(function: Callable[..., Any], name: str) -> None:
    """Warn of each call in a workflow that belongs in a step, at its file and line; silent without source."""
    try:
        lines, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        if len(source) > _SOURCE_MAX:
            return
        tree = ast.parse(source)
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError):
        return
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.AsyncFunctionDef | ast.FunctionDef):
        return
    found = _Finder(_Names(function, definition), definition).found
    for line, called, instead in sorted(set(found)):
        warnings.warn_explicit(
            f"workflow {name} uses {called} outside of a step: {instead}",
            NondeterminismWarning,
            filename=inspect.getsourcefile(function) or "<unknown>",
            lineno=first + line - 1,
            module=function.__module__,
        )


class _Names:
    """Meanings of names in a function: whole names of modules and of things in them."""

    def __init__(
        self, function: Callable[..., Any], definition: ast.AsyncFunctionDef | ast.FunctionDef
    ) -> None:
        self._globals: Mapping[str, Any] = getattr(function, "__globals__", {})
        code = getattr(function, "__code__", None)
        cells = zip(
            code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False
        )
        self._enclosed = dict(_contents(cells))
        self._imported = dict(_imports(definition))
        self._local = {each.arg for each in ast.walk(definition) if isinstance(each, ast.arg)} | {
            each.id
            for each in ast.walk(definition)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }

    def whole(self, node: ast.expr) -> str:
        """Return the whole name that an expression stands for, such as `datetime.datetime.now`; "" for any other."""
        if isinstance(node, ast.Attribute):
            base = self.whole(node.value)
            return f"{base}.{node.attr}" if base else ""
        return self._of_name(node.id) if isinstance(node, ast.Name) else ""

    def _of_name(self, name: str) -> str:
        if name in self._imported:
            return self._imported[name]
        if name in self._local:
            return ""
        for space in (self._enclosed, self._globals):
            if name in space:
                return _known(space[name])
        return name if hasattr(builtins, name) else ""


def _contents(cells: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _imports(definition: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that imports inside of a function bind."""
    for each in ast.walk(definition):
        if isinstance(each, ast.Import):
            for alias in each.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            for alias in each.names:
                yield alias.asname or alias.name, f"{each.module}.{alias.name}"


def _known(value: Any) -> str:
    """Return the whole name of a module, or of a thing in one of the modules above; "" for any other value."""
    if isinstance(value, ModuleType):
        return value.__name__
    for name in _THINGS:
        module, _, attribute = name.rpartition(".")
        if getattr(sys.modules.get(module), attribute, _NOTHING) is value:
            return name
    if not isinstance(value, _CALLABLES):
        return ""  # objects of the application are not examined
    owner = getattr(value, "__self__", None)  # `from random import random` is a method of a hidden object
    is_method = owner is not None and not isinstance(owner, ModuleType | type)
    home = type(owner).__module__ if is_method else value.__module__
    whole = f"{home}.{value.__name__}"
    return whole if _instead(whole) else ""


_NOTHING: Final = object()
_CALLABLES: Final = (FunctionType, BuiltinFunctionType, MethodType, type)
_THINGS: Final = (
    "datetime.datetime",
    "datetime.date",
    "os.environ",
    *(each for each in _CALLS if "." in each),
)


def _instead(called: str) -> str:
    """Return the replacement of a name, "" for one that may be used."""
    found = ""
    parts = called.split(".")
    for end in range(1, len(parts) + 1):
        found = found or _CALLS.get(".".join(parts[:end]), "")
    return found


class _Finder:
    """Finds calls in the code of the run itself, and in its branches; code inside of steps is ignored."""

    def __init__(self, names: _Names, definition: ast.AsyncFunctionDef | ast.FunctionDef) -> None:
        self.found: list[tuple[int, str, str]] = []
        self._names = names
        self._steps = set(_given_as_steps(definition))
        for statement in definition.body:
            self._look(statement)

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._is_step(node):
            return
        if isinstance(node, ast.Call):
            self._look_at_call(node)
        elif isinstance(node, ast.Attribute | ast.Name) and self._names.whole(node) == "os.environ":
            self._note(node, "os.environ")
        for child in ast.iter_child_nodes(node):
            self._look(child)

    def _look_at_call(self, node: ast.Call) -> None:
        called = self._names.whole(node.func)
        if called == "random.Random" and node.args:
            return  # a seed makes it the same each time
        if called.endswith(("Error", "Exception")) or called.startswith("os.environ."):
            return  # only makes an error, or is found where the variables are named
        self._note(node, called)

    def _is_step(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        marks = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in marks}
        return node.name in self._steps or bool(names & _MARKS_STEP)

    def _note(self, node: ast.expr, called: str) -> None:
        instead = _instead(called) if called else ""
        if instead:
            self.found.append((node.lineno, called, instead))


def _given_as_steps(definition: ast.AST) -> Iterator[str]:
    """Yield the names of functions that are arguments of `run.step` and similar methods."""
    for each in ast.walk(definition):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.args:
            first = each.args[0]
            if each.func.attr in _TAKES_STEP and isinstance(first, ast.Name):
                yield first.id
