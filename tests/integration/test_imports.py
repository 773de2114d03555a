"""What a process loads: who only enqueues pays for the ledger and its few libraries, and a command for what it does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

#: With what the interpreter itself may load at its start.
LIBRARIES = {"anyio", "jobledger", "msgspec", "nats", "typing_extensions", "uuid_utils"}
BY_PYTHON = {"__main__", "_distutils_hack", "__editables_finder__", "sitecustomize", "usercustomize"}
#: Packages of the ledger; its other modules lie beside them.
PACKAGES = {
    "jobledger.ledger.adding",
    "jobledger.ledger.connecting",
    "jobledger.ledger.limits",
    "jobledger.ledger.model",
    "jobledger.ledger.model.access",
    "jobledger.ledger.model.deciding",
    "jobledger.ledger.model.hooks",
    "jobledger.ledger.model.jobs",
    "jobledger.ledger.model.limits",
    "jobledger.ledger.model.queues",
    "jobledger.ledger.model.runs",
    "jobledger.ledger.model.schedules",
    "jobledger.ledger.nats",
    "jobledger.ledger.schedules",
    "jobledger.ledger.signalling",
    "jobledger.ledger.subscriptions",
    "jobledger.ledger.unique",
}
#: Of the standard library: slow to load, and nothing that an enqueue needs.
HEAVY = {"sqlite3", "http.server", "multiprocessing", "zoneinfo"}
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


def _loaded(program: str, *words: str) -> dict[str, bool]:
    """Return the modules that a process has loaded at its end, and of each whether it is a package."""
    command = [sys.executable, "-c", program + TELL, *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, bool] = json.loads(ran.stdout)
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
