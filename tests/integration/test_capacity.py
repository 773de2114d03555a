"""The commands of docs/capacity.md print what its figures are made of."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
#: What the table tells, under the names that the program prints. Memory depends on the machine and on how many jobs there are.
BYTES: Final = {
    "in the ledger while it waits": "stream bytes, waiting",
    "in the ledger when it has completed (three events)": "stream bytes, completed",
    "in an archive": "archive bytes",
}
AS_EXACT_AS: Final = 0.15


async def _printed(*words: str) -> dict[str, float]:
    (command,) = re.findall(r"^    python (\S+)$", PAGE, flags=re.MULTILINE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, command, *words, "--json", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    printed: dict[str, float] = json.loads(said)
    return printed


def _told(words: str) -> float:
    (figure,) = re.findall(rf"^\| {re.escape(words)} \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    return float(figure.replace(",", ""))


async def test_a_job_takes_the_bytes_that_the_page_tells() -> None:
    printed = await _printed("--only", "jobs", "--jobs", "2000")
    for words, name in BYTES.items():
        assert printed[name] == pytest.approx(_told(words), rel=AS_EXACT_AS), words
    assert all(value > 0 for name, value in printed.items() if name != "stream bytes, archived")


async def test_empty_ledgers_and_idle_clients_are_measured() -> None:
    assert all(value > 0 for value in (await _printed("--only", "ledgers")).values())


@pytest.mark.fault
async def test_three_servers_are_measured_beside_one() -> None:
    printed = await _printed("--only", "servers")
    assert 1 < printed["three beside one, least"] <= printed["three beside one, most"]
