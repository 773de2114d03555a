"""Links, commands, programs and console blocks of the documentation: what they show is so."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from tests.support.limits import LIMIT_S
from tests.support.ports import kept_port
from tests.support.program import PROGRAM
from tests.support.tables import each_row

from jobledger.cli.main import run
from jobledger.ledger import InvalidInputError, Ledger, Schedule, Task, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = ROOT / "README.md"
WEB = ROOT / "docs" / "web.md"  # its programs run under web servers, in test_web_servers.py
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)
_COMMAND_LIMIT_S = 60.0
_PROSE_WIDTH_MAX = 110


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path, language: str) -> list[Block]:
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, kind, text) for kind, text in found if kind == language]


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


# Links, and pages as a whole.


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


@each_row("page", PAGES, ids=_name)
def test_every_link_resolves(page: Path) -> None:
    broken: list[str] = []
    for link in _LINK.findall(_prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(link)
        elif anchor:
            headings = _HEADING.findall(_FENCE.sub("", target.read_text(encoding="utf-8")))
            if anchor not in map(_slug, headings):
                broken.append(link)
    assert broken == []


@each_row("page", PAGES, ids=_name)
def test_prose_is_wrapped(page: Path) -> None:
    """Tables and what is shown as it is (fenced, or indented by four) may be wider."""
    wide = [line for line in _prose(page).splitlines() if len(line) > _PROSE_WIDTH_MAX]
    assert [line for line in wide if not line.startswith(("|", "    "))] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", _prose(page))}
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    known = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert named
    assert sorted(named - known) == []


def test_every_module_that_a_page_names_exists() -> None:
    """By the end of its path, as `model/key.py`."""
    named = {name for page in PAGES for name in re.findall(r"`([\w./-]+/\w+\.py)`", _prose(page))}
    known = {f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*.py")}
    assert len(named) > 50
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in known)}
    assert missing == {"jobledger/__init__.py"}  # there must be none: eight distributions share the package


def test_the_index_leads_to_every_page() -> None:
    """The index, or the list of decisions that it links to."""
    lists = [ROOT / "docs" / "index.md", ROOT / "docs" / "adr" / "README.md"]
    linked = [{(each.parent / link).resolve() for link in _LINK.findall(_prose(each))} for each in lists]
    assert lists[1] in linked[0]
    assert [_name(page) for page in PAGES if page not in {*linked[0], *linked[1], lists[0], README}] == []


def test_every_picture_of_a_page_is_there_and_each_is_shown() -> None:
    shown = {
        (page.parent / found).resolve()
        for page in PAGES
        for found in re.findall(r"""(?:!\[[^\]]*\]\(|src(?:set)?=")([\w./-]+)""", _prose(page))
    }
    drawn = {path for name in ("diagrams", "pictures") for path in (ROOT / "docs" / name).iterdir()}
    assert sorted(map(_name, (drawn ^ shown) - {path for path in drawn if path.suffix == ".txt"})) == []


def test_the_page_of_examples_names_each() -> None:
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    programs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")]
    assert programs
    assert [path for path in programs if f"(../{path})" not in text] == []


def test_the_readme_names_no_source_file_and_pictures_are_small() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"`[\w./-]+/[\w.-]+\.py`", text) == []
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()}
    shown = re.findall(r"docs/pictures/([\w.-]+)", text)
    assert 0 < sum(sizes[name] for name in shown) < 400_000
    assert sum(sizes.values()) < 1_000_000


def test_each_page_of_the_dashboard_has_a_picture() -> None:
    pages = (
        (ROOT / "docs" / "dashboard.md")
        .read_text(encoding="utf-8")
        .partition("## Pages\n")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| .+$", pages, flags=re.MULTILINE)[1:]  # but the head
    assert len(rows) >= 18
    assert [row for row in rows if "](pictures/" not in row] == []


# Commands.


def _commands(page: Path) -> Iterator[str]:
    """Yield every command line named on a page, in prose or in a block."""
    for span in re.findall(r"`([^`]+)`", _prose(page)):
        if span.startswith(("jobledger ", "make ")):
            yield " ".join(span.split())
    for block in _blocks(page, "console"):
        for line in block.text.splitlines():
            if line.startswith(("$ jobledger ", "$ make ")):
                yield line.removeprefix("$ ")


def _unknown(command_line: str) -> str | None:
    """Return what the command line tool does not know of a command, None when it knows all."""
    found: Any = PROGRAM
    words = command_line.split()[1:]
    while words and hasattr(found, "commands") and not words[0].startswith("-"):
        word = words.pop(0)
        if word not in found.commands:
            return f"{command_line!r}: no command {word!r}"
        found = found.commands[word]
    known = {name for parameter in found.params for name in parameter.opts} | {"--help", "-h"}
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word.strip("-")]
    return next((f"{command_line!r}: no option {each}" for each in options if each not in known), None)


@each_row("page", PAGES, ids=_name)
def test_every_command_named_exists(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    wrong: list[str] = []
    for line in _commands(page):
        tool, first = line.split()[:2]
        if tool == "make":
            wrong += [] if first in targets else [line]
        else:
            wrong += [found for found in [_unknown(line)] if found is not None]
    assert wrong == []


def test_the_check_of_commands_finds_what_does_not_exist() -> None:
    assert _unknown("jobledger jobs list --state dead_lettered") is None
    assert _unknown("jobledger jobs paint") is not None
    assert _unknown("jobledger jobs list --colour") is not None


# Python.


@each_row("page", PAGES, ids=_name)
def test_python_blocks_compile(page: Path) -> None:
    for block in _blocks(page, "python"):
        compile(block.text, _name(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@contextlib.asynccontextmanager
async def _working(ledger: Ledger, names: dict[str, Any]) -> AsyncGenerator[None]:
    """Run a worker for the tasks that a page has defined so far."""
    tasks: list[Task[..., Any]] = [value for value in names.values() if isinstance(value, Task)]
    if not tasks:
        yield
        return
    worker = Worker(ledger, TaskRegistry(tasks))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        yield
        worker.stop()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, "python") and page != WEB], ids=_name
)
async def test_python_blocks_run(
    page: Path, nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's blocks run one after the other; what awaits finds `ledger` and a worker for the page's tasks."""
    monkeypatch.chdir(tmp_path)
    environment = re.sub(r"\W", "_", _name(page)).lower()
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger:
        names: dict[str, Any] = {"__name__": "docs", "ledger": ledger}
        for block in _blocks(page, "python"):
            known = dict(names)
            for statement in ast.parse(block.text).body:
                module = ast.Module([statement], [])
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                code = compile(module, _name(page), "exec", flags=flags, dont_inherit=True)
                if code.co_flags & inspect.CO_COROUTINE:
                    async with _working(ledger, names):
                        await eval(code, names)
                else:
                    # In a thread, because a whole program starts an event loop of its own.
                    await anyio.to_thread.run_sync(exec, code, names)
            _load_as_app({name: value for name, value in names.items() if known.get(name) is not value})


def _load_as_app(names: dict[str, Any]) -> None:
    """Load what a block defines as `--app` loads a module: a worker refuses what cannot be an application."""
    if not any(isinstance(value, Task | Schedule) for value in names.values()):
        return
    module = types.ModuleType("app_of_a_page")
    vars(module).update(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        tasks = TaskRegistry.load([module.__name__])
    assert set(tasks.fingerprints) == set(tasks.schedules)


def test_a_block_that_no_worker_can_load_is_found() -> None:
    @task(queue="mail")
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidInputError, match="schedule daily: task send"):
        _load_as_app({"send": send, "DAILY": Schedule("daily", cron="0 6 * * *", task=send)})


# Console.


class Step(NamedTuple):
    command: str
    shown: str


def _steps(page: Path) -> list[Step]:
    steps: list[Step] = []
    for block in _blocks(page, "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            steps.append(Step(command, shown))
    return steps


_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b[A-Za-z0-9_-]+-\d+-[0-9a-f]{8}\b"), "WORKER"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "MOMENT"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"[^\S\n]+"), " "),
    (re.compile(r"^ | $", flags=re.MULTILINE), ""),
)


def _normal(text: str) -> str:
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return text


def _pattern(shown: str) -> str:
    """Return what an output must match: a line `...` stands for any lines, at a line's end for the rest of it."""
    pattern = ""
    for line in _normal(shown).splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*?"
        elif line.endswith("..."):
            pattern += re.escape(line.removesuffix("...")) + r".*\n"
        else:
            pattern += re.escape(line) + r"\n"
    return pattern


class Terminal:
    """Runs the commands of a page in one folder; what serves until it is stopped goes on in the background."""

    def __init__(self, folder: Path, port: int, *, here: bool = False) -> None:
        """`here` runs what ends by itself in this process, which spares a page of many commands their starts."""
        self._folder = folder
        self._here = here
        self._port = port
        self._serving: list[subprocess.Popen[bytes]] = []
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JOBLEDGER_", "MAKE", "MFLAGS"))
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                str(ROOT / part) for part in ("ledger", "projections", "workers", "cli")
            ),
            "PYTHONUNBUFFERED": "1",
            "XDG_DATA_HOME": str(folder / "data"),
            "COLUMNS": "80",
            "JOBLEDGER_NO_GATEWAY": "1",  # a page that is about the gateway starts one itself
        }

    def run(self, step: Step) -> None:
        """Run one command as it stands; only the port and the address of its server are the test's own."""
        words = step.command.split()
        if words[0] == "make":  # would install, or run these tests
            subprocess.run(
                ["make", "-n", *words[1:]], cwd=ROOT, env=self._environment, check=True, timeout=LIMIT_S
            )
        elif words[0] == ".":
            assert words[1:] == [".venv/bin/activate"]
        elif words[:2] in (["jobledger", "up"], ["jobledger", "server"]):
            self._serve(f"{step.command} --port {self._port}", step)
        else:
            self._call(step)

    def output(self, command: str, *, limit_s: float) -> str:
        """Return what a command prints that needs no server of ours; it must succeed."""
        environment = self._environment | {"COLUMNS": "160"}
        ran = subprocess.run(
            command.split(),
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _call(self, step: Step) -> None:
        environment = self._environment | {"JOBLEDGER_URL": f"nats://127.0.0.1:{self._port}"}
        is_here = self._here and step.command.startswith("jobledger ")
        code, printed = (self._called_here if is_here else self._called)(step.command, environment)
        # An error is shown as the sentence it ends with.
        refused = "\njobledger: " in f"\n{step.shown}"
        assert (code != 0) == refused, f"{step.command}: exit code {code}\n{printed}"
        assert re.fullmatch(_pattern(step.shown), _normal(printed)), f"{step.command} printed\n{printed}"

    def _called(self, command: str, environment: dict[str, str]) -> tuple[int, str]:
        ran = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_COMMAND_LIMIT_S,
        )
        return ran.returncode, ran.stdout

    def _called_here(self, command: str, environment: dict[str, str]) -> tuple[int, str]:
        program, *words = shlex.split(command)
        assert program == "jobledger"
        printed = io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self._folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            for name in [name for name in os.environ if name.startswith("JOBLEDGER_")]:
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "path", [str(self._folder), *sys.path])
            code = run(words)
        for name, module in list(sys.modules.items()):  # another page has a module of the same name
            if str(getattr(module, "__file__", None)).startswith(str(self._folder)):
                del sys.modules[name]
        return code, printed.getvalue()

    def _serve(self, command: str, step: Step) -> None:
        output = self._folder / f"output-{len(self._serving)}"
        with output.open("wb") as sink:
            child = subprocess.Popen(
                command.split(), cwd=self._folder, env=self._environment, stdout=sink, stderr=sink
            )
        self._serving.append(child)
        deadline = time.monotonic() + _COMMAND_LIMIT_S
        while not re.match(_pattern(step.shown), _normal(output.read_text())):
            assert child.poll() is None, f"{command} ended: {output.read_text()}"
            assert time.monotonic() < deadline, f"{command} printed only: {output.read_text()}"
            time.sleep(0.02)

    def close(self) -> list[int]:
        """Stop what serves as Ctrl-C does; return the exit codes."""
        for child in self._serving:
            child.send_signal(signal.SIGINT)
        try:
            return [child.wait(timeout=LIMIT_S) for child in self._serving]
        finally:
            for child in self._serving:
                child.kill()


@pytest.fixture
def free_port() -> int:
    return kept_port()


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "page",
    [
        README,
        *(
            ROOT / "docs" / f"{each}.md"
            for each in ("start", "looking-back", "limits", "outbox", "projections", "queues", "schedules")
        ),
        ROOT / "CONTRIBUTING.md",
    ],
    ids=_name,
)
def test_console_blocks_print_what_they_show(
    page: Path, tmp_path: Path, nats_server_binary: str, free_port: int
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name, block in zip(
        re.findall(r"Save this as `([\w.]+)`", _prose(page)), _blocks(page, "python"), strict=False
    ):
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    steps = _steps(page)
    assert steps
    terminal = Terminal(tmp_path, free_port, here=page.parent.name == "docs")
    try:
        for step in steps:
            terminal.run(step)
    finally:
        codes = terminal.close()
    assert set(codes) <= {0}


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_the_demo_prints_what_the_readme_shows(
    tmp_path: Path, nats_server_binary: str, free_port: int
) -> None:
    (block,) = _blocks(README, "text")
    demo = Terminal(tmp_path, free_port).output("jobledger demo", limit_s=100)
    shown, printed = (re.sub(r"\d[\d,.]*", "N", _normal(text)) for text in (block.text, demo))
    for line in shown.splitlines():
        words, _, _ = line.partition("...")
        assert words.rstrip() in printed, f"{line!r} is not in\n{demo}"


def test_a_shown_output_that_is_not_printed_is_found() -> None:
    printed = _normal(
        "     4 14:05:12.771 queued\n     5 14:05:12.789 started  attempt 1 on web1-4311-52d07e1f\n"
    )
    shown = "4 00:00:00.000 queued\n5 00:00:00.000 started attempt 1 on a-1-00000000\n"
    assert re.fullmatch(_pattern(shown), printed)
    assert re.fullmatch(_pattern("...\n5 00:00:00.000 started...\n"), printed)
    assert not re.fullmatch(_pattern(shown.replace("attempt 1", "attempt 2")), printed)
    assert not re.fullmatch(_pattern("4 00:00:00.000 queued\n"), printed)
