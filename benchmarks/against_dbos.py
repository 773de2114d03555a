"""Steps of ours by turns with steps of DBOS, on SQLite and on the PostgreSQL that this machine has.

DBOS is installed once, in a virtual environment of its own, at the versions and hashes of `dbos.txt`. PostgreSQL is
started in a temporary folder, with the settings that it has by default: it fsyncs each commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Generator
from pathlib import Path
from typing import Final

import runs
from table import Figures

HERE: Final = Path(__file__).resolve().parent
_VENV: Final = HERE.parent / ".cache" / "dbos"
_LIMIT_S: Final = 300.0
_USER: Final = "postgres"  # PostgreSQL refuses to run as root


async def compare(rounds: int, steps: int) -> Figures:
    """Return ms a step of each, and how many times as many steps a second ours makes."""
    python = await asyncio.to_thread(_installed)
    found: Figures = {
        name: [] for name in ("ours", "ours fsynced", "sqlite", "postgres", "ahead", "ahead fsynced")
    }
    with (
        tempfile.TemporaryDirectory(prefix="jobledger-peers-") as folder,
        _postgres(Path(folder)) as postgres,
    ):
        for number in range(rounds):
            sqlite = f"sqlite:///{folder}/steps-{number}.sqlite"
            ours = (await runs.spent(runs.inline, steps, "process"))[0]
            of_sqlite = await _dbos(python, sqlite, steps)
            fsynced = (await runs.spent(runs.inline, steps, "power"))[0]
            found["ours"].append(ours)
            found["ours fsynced"].append(fsynced)
            found["sqlite"].append(of_sqlite)
            fastest = of_sqlite
            if postgres:
                of_postgres = await _dbos(python, postgres, steps)
                found["postgres"].append(of_postgres)
                found["ahead fsynced"].append(of_postgres / fsynced)
                fastest = min(fastest, of_postgres)
            found["ahead"].append(fastest / ours)
    return found


async def _dbos(python: Path, url: str, steps: int) -> float:
    process = await asyncio.create_subprocess_exec(
        python, "-P", HERE / "dbos_steps.py", url, str(steps), stdout=subprocess.PIPE
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"DBOS failed on {url.partition(':')[0]}"
    return float(json.loads(said.splitlines()[-1])["ms"])


def _installed() -> Path:
    """Return the Python of an environment that has DBOS; exit with a sentence where it cannot be installed."""
    python = _VENV / "bin" / "python"
    wanted = HERE / "dbos.txt"
    mark = _VENV / "dbos.txt"
    if not (mark.exists() and mark.read_bytes() == wanted.read_bytes()):
        venv.create(_VENV, clear=True, with_pip=True)
        words = (python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", wanted)
        if subprocess.run(words, check=False).returncode:  # noqa: S603 - pip itself
            sys.exit("DBOS cannot be installed here (pip says why above): leave --peers out")
        shutil.copy(wanted, mark)
    return python


@contextlib.contextmanager
def _postgres(folder: Path) -> Generator[str, None, None]:
    """Run PostgreSQL for the length of the block and give its URL, "" where this machine has none."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not homes:
        print("PostgreSQL is not on this machine: DBOS is measured on SQLite only", file=sys.stderr)
        yield ""
        return
    programs, data = homes[-1].parent, folder / "postgres"
    user = _USER if os.geteuid() == 0 else None
    data.mkdir()
    if user:
        folder.chmod(0o755)
        shutil.chown(data, user)
    words = (programs / "initdb", "-D", data, "-U", _USER, "--auth=trust", "--no-instructions")
    subprocess.run(words, check=True, user=user, stdout=subprocess.DEVNULL)  # noqa: S603 - PostgreSQL itself
    started = ("-o", f"-c listen_addresses='' -c unix_socket_directories={data}")
    control = (programs / "pg_ctl", "-D", data, "-w", "-l", data / "log")
    subprocess.run((*control, *started, "start"), check=True, user=user, stdout=subprocess.DEVNULL)  # noqa: S603
    try:
        yield f"postgresql://{_USER}@/postgres?host={data}"
    finally:
        subprocess.run((*control, "-m", "fast", "stop"), check=True, user=user, stdout=subprocess.DEVNULL)  # noqa: S603
