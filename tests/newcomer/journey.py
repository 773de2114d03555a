"""The way of a new user, from an empty folder outside the checkout to queries over the ledger: one line for each step.

Exit code 0: all steps went well; 77: no package index can be reached, so nothing can be installed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.newcomer.machine import (  # noqa: E402 - a script finds its neighbours first
    Machine,
    NotInstalledError,
    UnreachableIndexError,
    ask,
    until,
)
from tests.support.pages import save_programs  # noqa: E402

NO_INDEX = 77
WORKERS = 2
REQUESTS_MAX = 1_000

PARCELS = """
import pydantic
from jobledger.ledger import task

class Parcel(pydantic.BaseModel):
    grams: int

@task(queue="parcels")
async def send(parcel: Parcel) -> int:
    return parcel.grams
"""
SALES = """
import msgspec
from jobledger.ledger import Run, workflow

class Sum(msgspec.Struct):
    cents: int

@workflow(queue="sales", max_attempts=1)
async def total(run: Run) -> int:
    rows = await run.write("rows", [Sum(3), Sum(4)])
    summed = await run.sql("select sum(cents)::bigint as cents from rows", into="summed", rows=rows)
    return (await run.fetch(summed, Sum))[0].cents
"""
RESULT = """
from jobledger.ledger import sync

with sync.connect() as ledger:
    print(ledger.job("receipt-7", queue="mail").result(timeout_s=10))
"""
ON_A_SERVER = """
import pytest
from receipts import send_receipt

@pytest.mark.anyio
async def test_a_receipt_is_sent(server_ledger, server_worker):
    job = await server_ledger.enqueue(send_receipt, 8)
    await server_worker.run_pending(send_receipt)
    assert await job.result(timeout_s=10) == "receipt of order 8 sent"
"""
QUERY = """
import duckdb

[(events, completed)] = duckdb.sql(
    "SELECT count(*), count(*) FILTER (WHERE type = 'completed') FROM 'events/*.parquet'"
).fetchall()
[[status]] = duckdb.sql("SELECT status FROM 'tables/jobs.parquet' WHERE id = 'receipt-7'").fetchall()
print(events, completed, status)
"""

PEOPLE = """
[users]
"dana@example.org" = { role = "admin" }
"""
OPENID = ("--oidc-issuer", "https://login.example.org", "--oidc-client-id", "jobledger")

#: Of each extra: what the user is told without it, and a command that needs it.
EXTRAS = {
    "embedded": ("jobledger[embedded]", ("server", "--port", "0")),
    "parquet": ("jobledger[parquet]", ("audit", "export", "first", "--format", "parquet")),
    "seals": ("jobledger[seals]", ("audit", "keygen", "seal.pem")),
    "nkeys": ("jobledger[nkeys]", ("events", "tail", "--nkey", "user.nk")),
    "pydantic": ("No module named 'pydantic'", ("enqueue", "--app", "parcels", "send", 'parcel={"grams":3}')),
    "otel": ("jobledger[otel]", ("worker", "--app", "receipts", "--until-idle", "--traces")),
    "client": ("No module named 'httpx'", ("python", "-c", "import jobledger.gateway.client")),
    "outbox": ("No module named 'psycopg'", ("python", "-c", "import psycopg")),
    "gateway": ("jobledger[gateway]", ("gateway", "--port", "PORT")),
    "oidc": (
        "jobledger[oidc]",
        ("gateway", "--port", "PORT", "--people", "people.toml", *OPENID),
    ),
}
#: Extras that code of a running job needs, and no command: a step of their own tries them.
OF_JOBS = {"tables"}
#: Libraries of extras that a newer release of something else requires too: typer, of pydantic.
BROUGHT = {"pydantic"}


def _version() -> str:
    text = (ROOT / "ledger/jobledger/ledger/model/version.py").read_text(encoding="utf-8")
    found = re.search(r'^VERSION: Final = "(.+)"$', text, flags=re.MULTILINE)
    assert found is not None
    return found[1]


def extras(here: Machine) -> None:
    """Install jobledger alone, then one extra after the other: refused with its name before, served after."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(known["optional-dependencies"]) - {"dev"} == set(EXTRAS) | OF_JOBS, (
        "an extra that no step tries"
    )
    here.install(str(ROOT))
    assert _version() in here.succeed("jobledger", "--version")
    for name, (sentence, command) in EXTRAS.items():
        refused(here, name, sentence, command)
        here.install(f"{ROOT}[{name}]")
        if name == "embedded":
            server(here, *command)
        elif command[0] == "gateway":
            served, _ = here.serve("jobledger", *command)
            served.terminate()
            assert served.wait(30) == 0
        else:
            here.succeed(*_program(command))
    here.succeed("jobledger", "audit", "seal", "--key", "seal.pem")


def refused(here: Machine, name: str, sentence: str, command: tuple[str, ...]) -> None:
    """See that a command says which extra it lacks."""
    if name in BROUGHT and here.run("python", "-c", f"import {name}")[0] == 0:
        here.say(f"{name} is there before its extra: another library brought it")
        return
    code, said = here.run(*(word.replace("PORT", "0") for word in _program(command)))
    assert code != 0, f"without the extra {name}: {command} should be refused, but said {said}"
    assert sentence in " ".join(said.split()), said
    here.say(
        f"without the extra {name}, {' '.join(_program(command)[:2])} says: {said.strip().splitlines()[-1]}"
    )


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    return command if command[0] == "python" else ("jobledger", *command)


def server(here: Machine, *command: str) -> None:
    """Start the server that every later step uses, and put a first job into its ledger."""
    child, log = here.start("jobledger", *command, "--json")
    until(lambda: child.poll() is not None or b"\n" in log.read_bytes(), "the server is ready")
    assert child.poll() is None, log.read_text(errors="replace")
    here.variables["JOBLEDGER_URL"] = json.loads(log.read_text().splitlines()[0])["url"]
    here.succeed("jobledger", "enqueue", "--app", "receipts", "send_receipt", "order=1")


def tables(here: Machine) -> None:
    """Run a workflow that makes tables: without the extra its job says what is missing, with it the job completes."""
    assert "jobledger[tables]" in total(here, "before")
    here.install(f"{ROOT}[tables]")
    assert "completed" in total(here, "after")


def total(here: Machine, job: str) -> str:
    """Run the workflow as a job; return what is said of the job, on one line."""
    here.succeed("jobledger", "enqueue", "--app", "sales", "total", "--id", job)
    here.succeed("jobledger", "worker", "--app", "sales", "--until-idle")
    return " ".join(here.succeed("jobledger", "jobs", "show", job).split())


def fastapi(here: Machine) -> None:
    """Serve the page's FastAPI program, with a worker beside it."""
    here.install("fastapi", "uvicorn")
    _, url = here.serve("uvicorn", "--host", "127.0.0.1", "--port", "PORT", "fastapi_shop:app")
    here.start("jobledger", "worker", "--app", "receipts")
    assert json.loads(ask(f"{url}/orders/7", post=True)) == {"job": "receipt-7"}
    until(lambda: json.loads(ask(f"{url}/jobs/receipt-7"))["state"] == "completed", "receipt-7 is completed")
    assert here.succeed("python", "-c", RESULT) == "receipt of order 7 sent\n"


def preload(here: Machine) -> None:
    """Connect before the web server forks, under gunicorn and, where it installs, under uWSGI."""
    here.install("flask", "gunicorn")
    shutil.copy(ROOT / "tests" / "integration" / "apps" / "preloaded.py", here.folder)
    here.variables["LEDGER_ENVIRONMENT"] = "web"
    words = ("--preload", "--workers", str(WORKERS), "--bind", "127.0.0.1:PORT", "preloaded:app")
    _forked(here, "gunicorn", *words)
    try:
        here.install("--only-binary", ":all:", "pyuwsgi")
    except NotInstalledError:
        here.say("left out: no package index has a built pyuwsgi for this machine")
        return
    words = ("--master", "--processes", str(WORKERS), "--enable-threads", "--die-on-term", "--need-app")
    _forked(here, "uwsgi", *words, "--http-socket", "127.0.0.1:PORT", "--module", "preloaded:app")


def _forked(here: Machine, program: str, *words: str) -> None:
    """Every process that the web server forked enqueues; a stop is graceful."""
    child, url = here.serve(program, *words)
    pids: set[str] = set()
    for number in range(REQUESTS_MAX):
        pid, created = ask(f"{url}/{program}-{number}", post=True).split()
        assert created == "True"
        pids.add(pid)
        if len(pids) == WORKERS:
            break
    assert len(pids) == WORKERS, f"{REQUESTS_MAX} requests, and only {pids} answered"
    assert str(child.pid) not in pids
    child.terminate()
    assert child.wait(30) == 0


def plugin(here: Machine) -> None:
    """Run tests of one's own with the fixtures: the page's test in memory, and one on a server."""
    here.install("pytest")
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown, runs = [text for text in blocks if "def test_" in text]
    for name, text in (("test_memory.py", shown), ("test_runs.py", runs), ("test_server.py", ON_A_SERVER)):
        (here.folder / name).write_text(text, encoding="utf-8")
    files = ("test_memory.py", "test_runs.py", "test_server.py")
    said = here.succeed("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=kept", *files)
    # Twice three where trio is installed: the plugin of anyio runs each under both.
    assert re.search(r"^[36] passed", said, re.MULTILINE), said


def analysis(here: Machine) -> None:
    """Export the ledger as Parquet and ask DuckDB what is in it."""
    here.install("duckdb")
    here.succeed("jobledger", "audit", "export", "events", "--format", "parquet")
    here.succeed("jobledger", "audit", "export", "tables", "--tables")
    here.succeed("jobledger", "audit", "verify", "events")
    here.succeed("jobledger", "audit", "verify")
    here.succeed(
        "jobledger", "audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", "archive"
    )
    here.succeed("jobledger", "audit", "verify", "--archive", "archive")
    manifest = json.loads((here.folder / "events" / "manifest.json").read_bytes())
    # Three jobs completed: the first by the worker with traces, receipt-7 by the one beside FastAPI, the one with tables.
    assert here.succeed("python", "-c", QUERY) == f"{manifest['count']} 3 completed\n"


def _programs(folder: Path) -> None:
    """Write what the user has before the first step: the page's programs, a module of tasks, an nkey."""
    assert save_programs(ROOT / "docs" / "web.md", folder)
    (folder / "parcels.py").write_text(PARCELS, encoding="utf-8")
    (folder / "sales.py").write_text(SALES, encoding="utf-8")
    raw = bytes([0x95, 0]) + os.urandom(32)  # the prefix of a user's seed: SU
    seed = base64.b32encode(raw + struct.pack("<H", binascii.crc_hqx(raw, 0))).decode().rstrip("=")
    (folder / "people.toml").write_text(PEOPLE, encoding="utf-8")
    (folder / "user.nk").touch(0o600)
    (folder / "user.nk").write_text(seed, encoding="utf-8")


def main() -> int:
    """Take every step; whatever happens, no process and no file is left."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        here = Machine(Path(name).resolve())
        _programs(here.folder)
        try:
            for step in (extras, tables, fastapi, preload, plugin, analysis):
                here.say(f"-- {step.__doc__}")
                step(here)
        except UnreachableIndexError as error:
            here.say(f"stopped here, since {error}")
            return NO_INDEX
        finally:
            here.close()
        here.say("all went well, and every process has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
