"""What a process loads: who only enqueues pays for the ledger and its few libraries, and a command for what it does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from jobledger.ledger import connect

if TYPE_CHECKING:
    from pathlib import Path

    from jobledger.ledger.server import EmbeddedServer

#: With what the interpreter itself may load at its start.
LIBRARIES = {"anyio", "jobledger", "msgspec", "nats", "typing_extensions", "uuid_utils"}
BY_PYTHON = {"__main__", "_distutils_hack", "__editables_finder__", "sitecustomize", "usercustomize"}
#: Packages of the ledger; its other modules lie beside them.
PACKAGES = {
    "jobledger.ledger.access",
    "jobledger.ledger.additions",
    "jobledger.ledger.connection",
    "jobledger.ledger.limits",
    "jobledger.ledger.on_demand",
    "jobledger.ledger.logs",
    "jobledger.ledger.model",
    "jobledger.ledger.model.access",
    "jobledger.ledger.model.decision_parts",
    "jobledger.ledger.model.graphs",
    "jobledger.ledger.model.hooks",
    "jobledger.ledger.model.jobs",
    "jobledger.ledger.model.limits",
    "jobledger.ledger.model.queues",
    "jobledger.ledger.model.rights",
    "jobledger.ledger.model.runs",
    "jobledger.ledger.model.schedules",
    "jobledger.ledger.nats",
    "jobledger.ledger.schedules",
    "jobledger.ledger.sent_signals",
    "jobledger.ledger.subscriptions",
    "jobledger.ledger.unique",
}
#: Of the standard library: slow to load, and nothing that an enqueue needs.
HEAVY = {"sqlite3", "http.server", "multiprocessing", "zoneinfo"}
#: Modules of the ledger that errors and names of files need: nobody adds to these by accident.
OF_EVERY_HELP = 12
#: Modules, of every library, that a list of jobs loads: its start is nearly all of its time. What needs more asks for it.
OF_A_LIST = 637
#: What speaks to a server, reads a projection or draws.
WORK = {"asyncio", "nats", "pydantic", "rich", "sqlite3"}
VERSION = """
import contextlib, sys
sys.argv = ["jobledger", "--version"]
from jobledger.cli.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
COMPLETION = """
import contextlib, os, sys
os.environ |= {"_JOBLEDGER_COMPLETE": "complete_bash", "COMP_WORDS": "jobledger jobs li", "COMP_CWORD": "2"}
sys.argv = ["jobledger"]
from jobledger.cli.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
TELL = """
import json, sys
print(json.dumps({name: hasattr(module, "__path__") for name, module in list(sys.modules.items())}))
"""
ENQUEUE = """
import asyncio, sys
from jobledger.ledger import connect, task

@task(queue="email")
async def send(number: int) -> int:
    return number

async def main():
    async with connect(sys.argv[1]) as ledger:
        await ledger.enqueue(send, 7)
        await ledger.enqueue_many(send, ({"number": number} for number in range(3)))

asyncio.run(main())
"""
#: The end of a command, with what it put off; the ledger has no other use for nats-py's JetStream client.
LARGE_INPUT = """
import asyncio, sys
from jobledger.ledger.nats.jetstream_client import load_jetstream_at_first_use
load_jetstream_at_first_use()
import nats.js, nats.aio.client
assert "nats.js.api" not in sys.modules
from jobledger.ledger import connect, task

@task
async def send(text: str) -> str:
    return text

async def main():
    async with connect(sys.argv[1]) as ledger:
        assert "nats.js.api" not in sys.modules
        await ledger.enqueue(send, "x" * 500_000)

asyncio.run(main())
import nats.js.errors
from nats.js.errors import NotFoundError
assert nats.js.errors.NotFoundError is NotFoundError is sys.modules["nats.js.errors"].NotFoundError
assert sys.modules["nats.js"] is nats.js
"""


def _loaded(program: str, *words: str) -> dict[str, bool]:
    """Return the modules that a process has loaded at its end, and of each whether it is a package."""
    command = [sys.executable, "-c", program + TELL, *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, bool] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _libraries(modules: dict[str, bool]) -> set[str]:
    tops = {name.partition(".")[0] for name in modules}
    return tops - sys.stdlib_module_names - BY_PYTHON


async def test_a_process_that_only_enqueues_loads_the_ledger_and_little_else(
    nats_server: EmbeddedServer,
) -> None:
    modules = _loaded(ENQUEUE, nats_server.url)
    assert _libraries(modules) - LIBRARIES == set()
    ours = {name for name, is_package in modules.items() if is_package and name.startswith("jobledger.")}
    assert ours - {"jobledger.ledger", *PACKAGES} == set()
    assert HEAVY & modules.keys() == set()


def test_a_command_loads_nothing_of_metrics_parquet_or_signatures() -> None:
    modules = _loaded("import jobledger.cli.main")
    assert _libraries(modules) - LIBRARIES - {"annotated_doc", "rich", "shellingham", "typer"} == set()
    assert "http.server" not in modules


def test_the_version_is_said_without_anything_that_works() -> None:
    modules = _loaded(VERSION)
    assert _libraries(modules) == {"jobledger"}
    assert {"importlib.metadata", "inspect", "logging", *WORK} & modules.keys() == set()
    assert {name for name in modules if name.startswith("jobledger.cli.")} <= {
        "jobledger.cli.__main__",
        "jobledger.cli.commit",
        "jobledger.cli.streams",
    }


def test_a_name_is_completed_in_bash_without_any_command() -> None:
    modules = _loaded(COMPLETION)
    unwanted = {"jobledger.cli.command", "jobledger.cli.jobs.list", *WORK}
    assert unwanted & modules.keys() == set()


def test_the_help_of_all_commands_loads_nothing_that_works_or_draws() -> None:
    modules = _loaded("from jobledger.cli.main import run; run(['--help'])")
    assert {"msgspec", "secrets", *WORK} & modules.keys() == set()
    ours = {name for name in modules if name.startswith("jobledger.ledger.")}
    assert len(ours) <= OF_EVERY_HELP, ours


def test_the_help_of_a_command_loads_nothing_that_connects_or_reads_values() -> None:
    modules = _loaded("from jobledger.cli.main import run; run(['jobs', 'list', '--help'])")
    assert "jobledger.cli.jobs.list" in modules
    unwanted = {*(WORK - {"rich"}), "jobledger.ledger.client", "jobledger.ledger.tasks"}
    assert unwanted & modules.keys() == set()


def test_a_command_reads_its_options_without_pydantic() -> None:
    words = ["jobs", "list", "--url", "nats://127.0.0.1:1", "--queue", "email", "--limit", "7"]
    modules = _loaded(f"from jobledger.cli.main import run; run({words})")
    assert "nats" in modules
    assert "pydantic" not in modules


async def test_a_list_of_jobs_loads_no_more_than_it_needs(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with connect(nats_server.url):
        pass  # makes the ledger
    words = ["jobs", "list", "--url", nats_server.url, "--projection", str(tmp_path / "projection.db")]
    modules = await asyncio.to_thread(
        _loaded, f"from jobledger.cli.main import run; assert run({words}) == 0"
    )
    unwanted = {"nats.js.api", "nats.js.client", "pydantic", "rich.progress", "sqlite_utils"}
    assert unwanted & modules.keys() == set()
    assert len(modules) <= OF_A_LIST


async def test_an_answer_in_json_loads_nothing_that_draws(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with connect(nats_server.url):
        pass
    place = ["--url", nats_server.url, "--projection", str(tmp_path / "projection.db")]
    program = f"from jobledger.cli.main import run; assert run({['jobs', 'list', '--json', *place]}) == 0"
    assert "rich" not in await asyncio.to_thread(_loaded, program)


async def test_what_is_put_off_is_loaded_when_it_is_used(nats_server: EmbeddedServer) -> None:
    modules = await asyncio.to_thread(_loaded, LARGE_INPUT, nats_server.url)
    assert "nats.js.object_store" in modules


def test_help_and_completion_load_no_command_of_a_group_that_was_not_named() -> None:
    modules = _loaded(
        "from jobledger.cli.main import program; program(['--help']); program(['events', 'sub'])"
    )
    assert "jobledger.cli.events.tail" in modules
    assert {"jobledger.cli.jobs.list", "jobledger.cli.audit.verify"} & modules.keys() == set()


def test_a_switch_before_a_command_does_not_load_the_others() -> None:
    modules = _loaded("from jobledger.cli.main import run; run(['--log-format', 'json', 'server', '--help'])")
    assert "jobledger.cli.processes.server" in modules
    assert {
        "nats",
        "jobledger.cli.processes.worker",
        "jobledger.projections.projector",
    } & modules.keys() == set()


def test_a_process_of_the_pool_loads_no_client_before_a_task_asks_for_it() -> None:
    modules = _loaded(
        "import jobledger.workers.pool.child; from jobledger.ledger import Context, Snooze, task"
    )
    assert _libraries(modules) - (LIBRARIES - {"anyio", "nats"}) == set()
    assert {"jobledger.ledger.client", "jobledger.workers.worker", "sqlite3"} & modules.keys() == set()


def test_the_client_of_a_gateway_loads_nothing_that_speaks_to_a_server() -> None:
    modules = _loaded("import jobledger.gateway.client")
    assert {"nats", "jobledger.ledger.client", "typer", "sqlite3"} & modules.keys() == set()


def test_a_child_of_a_gateway_loads_nothing_of_what_the_others_do() -> None:
    modules = _loaded("from jobledger.gateway.process.child import _program; _program('projector')")
    assert "jobledger.projections.projector" in modules
    assert {"httpx", "jobledger.workers.worker", "jobledger.audit.verify.checker"} & modules.keys() == set()


def test_up_and_its_keeper_need_no_library_of_the_gateway() -> None:
    program = "import jobledger.cli.processes.up; from jobledger.gateway.process.child import _program; _program('keeper')"
    modules = _loaded(program)
    assert "jobledger.gateway.process.keeper" in modules
    assert {"httpx", "starlette", "uvicorn", "jinja2", "prometheus_client"} & modules.keys() == set()
