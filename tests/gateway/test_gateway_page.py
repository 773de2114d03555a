"""docs/gateway.md: its console blocks are run, one after the other, beside what the page tells its reader to start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.pages import save_programs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gateway.md"
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(page: Path) -> list[tuple[str, str]]:
    """Return each command of the page, and what it prints."""
    found: list[tuple[str, str]] = []
    for block in _CONSOLE.findall(page.read_text(encoding="utf-8")):
        lines = block.splitlines(keepends=True)
        while lines:
            command = lines.pop(0).removeprefix("$ ")
            while command.endswith("\\\n") or command.count("'") % 2:
                command += lines.pop(0)
            said = ""
            while lines and not lines[0].startswith("$ "):
                said += lines.pop(0)
            found.append((command, said))
    return found


def until_known(address: str, headers: dict[str, str]) -> None:
    """Wait until the worker has announced its tasks."""
    end = time.monotonic() + LIMIT_S
    while not httpx.get(address, headers=headers).is_success:
        assert time.monotonic() < end, "the worker announced no task"
        time.sleep(0.05)


@pytest.fixture
def started(tmp_path: Path, nats_server_binary: str) -> Iterator[dict[str, str]]:
    """Start what the page starts; give the variables of its second terminal."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert save_programs(PAGE, tmp_path) == 1
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
    variables |= {"PATH": path, "XDG_DATA_HOME": str(tmp_path / "data")}
    words = ("--app", "shop", "--dir", "store", "--port", "0", "--gateway-port", "0", "--json")
    command = ["jobledger", "up", *words, "--durability", "process"]
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        until_known(f"{ready['gateway']}/v1/tasks/charge", as_account(ready))
        yield {**variables, "GATEWAY": ready["gateway"], "NATS": ready["url"], "ME": f"@{ready['key_file']}"}
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)
        process.stdout.close()


def test_every_command_prints_what_the_page_shows(started: dict[str, str], tmp_path: Path) -> None:
    for command, said in steps(PAGE):
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=started,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        printed = f"{ran.stdout.strip()}\n{ran.stderr.strip()}".strip()
        pattern = re.escape(said.strip()).replace(r"\.\.\.", ".*?")
        assert re.fullmatch(pattern, printed, flags=re.DOTALL), f"{command} printed\n{printed}"
