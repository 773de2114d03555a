"""The rules of the source tree that no linter knows: portions, sizes of functions, names, direction of imports, the wheel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tests.support.tables import each_row
from tools.measure import ROOTS, measure

from jobledger.ledger.model.version import VERSION

ROOT = Path(__file__).parents[2]
PORTIONS = ("ledger", "audit", "projections", "workers", "admin", "gateway", "cli", "testing")
#: Modules beside a portion: each says where the name is that people import from `jobledger` itself.
SIGNPOSTS = {"connect.py", "task.py", "workflow.py"}
SOURCES = sorted(path for portion in PORTIONS for path in (ROOT / portion).rglob("*.py"))
FUNCTION_LINES_MAX = 60
_HOLDS_FUNCTIONS = ast.stmt | ast.excepthandler | ast.match_case
#: An `except` that may catch everything: no other module needs to be parsed for one.
_CATCHES_ALL = re.compile(r"\bexcept\b\*?\s*(?::|\(?\s*(?:Base)?Exception\b)")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module that has room for one that is too long."""
    text = path.read_text(encoding="utf-8")
    nodes: list[ast.AST] = [ast.parse(text)] if text.count("\n") > FUNCTION_LINES_MAX else []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        # No expression holds a function with a name, and most of a tree is expressions.
        nodes += (each for each in ast.iter_child_nodes(node) if isinstance(each, _HOLDS_FUNCTIONS))


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _run(*command: str, cwd: Path, path: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_there_are_sources_to_check() -> None:
    assert "ledger/jobledger/ledger/model/events.py" in map(_name, SOURCES)


def test_the_namespace_package_has_no_init() -> None:
    assert [portion for portion in PORTIONS if (ROOT / portion / "jobledger" / "__init__.py").exists()] == []


@each_row("portion", PORTIONS)
def test_each_portion_holds_one_typed_package(portion: str) -> None:
    inside = {path.name for path in (ROOT / portion / "jobledger").iterdir() if path.name != "__pycache__"}
    assert inside == {portion} | (SIGNPOSTS if portion == "ledger" else set())
    assert (ROOT / portion / "jobledger" / portion / "__init__.py").is_file()
    assert (ROOT / portion / "jobledger" / portion / "py.typed").is_file()


def test_functions_are_not_too_long() -> None:
    lengths = {f"{_name(path)}:{node.name}": _lines(node) for path in SOURCES for node in _functions(path)}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_modules_are_named_for_what_they_hold() -> None:
    assert [
        _name(path) for path in SOURCES if {"utils", "common", "helpers"} & set(path.with_suffix("").parts)
    ] == []


def test_the_pages_that_follow_from_the_code_are_up_to_date() -> None:
    ran = _run(sys.executable, str(ROOT / "docs" / "generate.py"), "--check", cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def _unexplained(text: str) -> Iterator[int]:
    """Yield the lines that catch everything, keep it, and do not say why."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)) if _CATCHES_ALL.search(text) else ():
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = {"BaseException"} if node.type is None else {ast.unparse(node.type)}
        last = node.body[-1]
        passes_on = isinstance(last, ast.Raise) and last.exc is None
        told = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
        if caught & {"Exception", "BaseException"} and not passes_on and not told:
            yield node.lineno


def test_what_catches_everything_says_why() -> None:
    found = {_name(path): list(_unexplained(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert list(_unexplained("try:\n    f()\nexcept Exception:\n    pass\n")) == [3]


#: What belongs to a terminal or to the process that was started there.
_OF_THE_TERMINAL = re.compile(r"sys\.(argv|stdin|stdout|stderr|exit)|os\.(environ|getenv)|print$")


def test_make_test_collects_every_folder_of_tests() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    collected = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    folders = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(collected) == sorted(f"tests/{folder}" for folder in folders)


def _terminal_words(text: str) -> list[str]:
    names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute | ast.Name)]
    imported = [
        f"{node.module}.{name.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]
    return sorted({word for word in (*map(ast.unparse, names), *imported) if _OF_THE_TERMINAL.match(word)})


def test_admin_reads_no_argument_or_environment_and_writes_to_no_terminal() -> None:
    found = {_name(path): _terminal_words(path.read_text(encoding="utf-8")) for path in _of("admin")}
    assert {name: words for name, words in found.items() if words} == {}
    planted = "import os, sys\nfrom os import getenv\nprint(sys.argv, os.environ['A'], getenv('B'))\n"
    assert _terminal_words(planted) == ["os.environ", "os.getenv", "print", "sys.argv"]


def _of(portion: str) -> list[Path]:
    return [path for path in SOURCES if path.is_relative_to(ROOT / portion)]


def test_ledger_needs_no_other_portion(tmp_path: Path) -> None:
    """Only ledger/ is on the path, next to the dependencies; not even the editable installation is seen."""
    program = (
        "import sys; "
        "sys.path[:] = [p for p in sys.path if not p.rstrip('/').endswith(('audit', 'projections', 'workers', 'admin', 'cli', 'testing'))]; "
        "import jobledger.ledger; "
        "from importlib.util import find_spec; "
        "print([n for n in ('audit', 'projections', 'workers', 'admin', 'cli', 'testing') if find_spec('jobledger.' + n)])"
    )
    ran = _run(sys.executable, "-c", program, cwd=tmp_path, path=(str(ROOT / "ledger"),))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")


def _planted_copy(tmp_path: Path) -> Path:
    for portion in PORTIONS:
        shutil.copytree(ROOT / portion, tmp_path / portion, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _lint_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    roots = tuple(str(copy / portion) for portion in PORTIONS)
    return _run(sys.executable, "-c", program, "--no-cache", cwd=copy, path=roots)


#: Portion, what a module of it must not import, and what is said of that.
_PLANTED = [
    ("ledger", "import jobledger.workers", "jobledger.ledger is not allowed to import jobledger.workers"),
    ("ledger", "import jobledger.cli", "jobledger.ledger is not allowed to import jobledger.cli"),
    ("workers", "import jobledger.projections", "workers is not allowed to import jobledger.projections"),
    ("projections", "import jobledger.workers", "projections is not allowed to import jobledger.workers"),
    ("workers", "import jobledger.cli", "jobledger.workers is not allowed to import jobledger.cli"),
    ("workers", "import jobledger.admin", "jobledger.workers is not allowed to import jobledger.admin"),
    ("projections", "import jobledger.admin", "projections is not allowed to import jobledger.admin"),
    ("admin", "import jobledger.cli", "jobledger.admin is not allowed to import jobledger.cli"),
    ("admin", "import typer", "jobledger.admin is not allowed to import typer"),
    ("admin", "from rich.text import Text", "jobledger.admin is not allowed to import rich"),
    (
        "ledger",
        "from nats.aio.client import Client",
        "jobledger.ledger.planted_10 is not allowed to import nats",
    ),
    (
        "ledger",
        "import jobledger.ledger.nats.api",
        "Illegal imports of protected package jobledger.ledger.nats.api",
    ),
    (
        "cli",
        "import jobledger.ledger.nats.api",
        "Illegal imports of protected package jobledger.ledger.nats.api",
    ),
]


def test_import_contracts_see_each_planted_violation(tmp_path: Path) -> None:
    """All at once, and two modules that need each other: a run reads every module. `make imports` runs it with none."""
    copy = _planted_copy(tmp_path)
    ledger = copy / "ledger" / "jobledger" / "ledger"
    (ledger / "mutual.py").write_text("import jobledger.ledger.throttle\n", encoding="utf-8")
    with (ledger / "throttle.py").open("r+", encoding="utf-8") as throttle:
        throttle.seek(0, os.SEEK_END)
        throttle.write("\nif TYPE_CHECKING:\n    import jobledger.ledger.mutual\n")
    for number, (where, line, _) in enumerate(_PLANTED):
        path = copy / where / "jobledger" / where / f"planted_{number}.py"
        path.write_text(line + "\n", encoding="utf-8")
    linted = _lint_imports(copy)
    assert linted.returncode == 1
    told = " ".join(linted.stdout.split())
    for number, (where, line, broken) in enumerate(_PLANTED):
        assert broken in told
        imported = line.split()[1].replace("nats.aio.client", "nats").replace("rich.text", "rich")
        assert f"jobledger.{where}.planted_{number} -> {imported} (l.1)" in told
    assert "No cycles are allowed in jobledger.ledger." in told
    assert ".throttle -> .mutual (1 import)" in told


def test_the_wheel_holds_every_portion_and_the_configuration(tmp_path: Path) -> None:
    built = _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("jobledger/ledger/nats.conf") == (ROOT / "nats.conf").read_bytes()
    packaged = {path.relative_to(ROOT / path.relative_to(ROOT).parts[0]).as_posix() for path in SOURCES}
    assert packaged <= names
    assert {f"jobledger/{portion}/py.typed" for portion in PORTIONS} <= names
    assert "jobledger/__init__.py" not in names
    assert {name.split("/")[0] for name in names} == {"jobledger", "jobledger-0.2.0.dist-info"}


@each_row(
    "pinned",
    [ROOT / "constraints.txt", *sorted((ROOT / "benchmarks").rglob("*.txt"))],
    ids=lambda path: path.stem,
)
def test_the_pins_name_no_index_and_hash_everything(pinned: Path) -> None:
    text = pinned.read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not any(word in text for word in ("://", "--index", "--find-links", " @ "))


def test_classes_and_modules_are_named_by_nouns() -> None:
    found = measure(path for root in ROOTS for path in sorted((ROOT / root).rglob("*.py")))
    assert (found.participles, found.gerunds) == ((), ())


def test_the_version_of_the_code_is_that_of_the_distribution() -> None:
    assert metadata.version("jobledger") == VERSION


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {_bare(line) for line in (*project["dependencies"], *extras["dev"], *extras["embedded"])}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in pins if "==" in line}
    assert wanted - pinned == set()


def _bare(requirement: str) -> str:
    return requirement.partition(";")[0].partition(">=")[0].partition("[")[0].strip()
