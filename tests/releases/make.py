"""Write the golden ledger of a release: python tests/releases/make.py COMMIT [NAME]

Checks the release out of this repository's history into a temporary folder, starts a nats-server with a store of its own,
and lets the release's own code write, archive and export there (`write_ledger.py`). What lies in `tests/releases/NAME`
(default: COMMIT) is replaced. The packages that the release needs must be installed.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from jobledger.ledger.server import EmbeddedServer

HERE = Path(__file__).parent
ROOTS = ("ledger", "audit", "projections", "workers", "admin", "gateway", "cli")


def check_out(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    packed = subprocess.run(
        ["git", "archive", commit], cwd=HERE.parents[1], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")


async def write(commit: str, folder: Path) -> None:
    """Let a release write its ledger into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        source, store, program = (Path(temporary, name) for name in ("source", "store", "program"))
        check_out(commit, source)
        store.mkdir()
        program.mkdir()
        for name in ("release_app.py", "write_ledger.py"):
            shutil.copy(HERE / name, program)
        found = [str(source / root) for root in ROOTS if (source / root).exists()]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
        variables |= {
            "PYTHONPATH": os.pathsep.join([*found, str(program)]),
            "XDG_DATA_HOME": temporary,
            "COLUMNS": "80",
            "JOBLEDGER_NO_GATEWAY": "1",
        }
        async with EmbeddedServer(store, port=0, durability="process") as server:
            words = [sys.executable, "-P", str(program / "write_ledger.py"), server.url, "."]
            await asyncio.to_thread(subprocess.run, words, env=variables, cwd=program, check=True)
        for name in ("archive", "live"):
            shutil.copytree(program / name, folder / name)


def main() -> None:
    """Write the ledger of the release that is named."""
    commit, name = sys.argv[1], (sys.argv[2:] or sys.argv[1:2])[0]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    asyncio.run(write(commit, folder))


if __name__ == "__main__":
    main()
