"""Jobs without limits by turns with the packages of another commit and with those of this tree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import drain

from jobledger.ledger.server import EmbeddedServer

HERE: Final = Path(__file__).resolve().parents[1]
_LIMIT_S: Final = 300.0


def git(*words: str) -> str:
    """Return what git says of this repository; exit with its sentence where it refuses."""
    ran = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if ran.returncode:
        sys.exit(f"git {words[0]} {words[-1]}: {ran.stderr.strip()}; name a commit of this repository")
    return ran.stdout.strip()


def commit_named(name: str) -> str:
    """Return the full name of a commit."""
    return git("rev-parse", "--verify", f"{name}^{{commit}}")


@contextlib.contextmanager
def tree_of(commit: str) -> Generator[Path, None, None]:
    """Give a work tree of a commit in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="jobledger-before-") as folder:
        tree = Path(folder).resolve() / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def roots(tree: Path) -> list[str]:
    """Return the source roots of a tree."""
    return sorted(str(package.parent) for package in tree.glob("*/jobledger"))


async def drain_with(tree: Path, jobs: int) -> dict[str, float]:
    """Measure once with the packages of a tree, the other packages of this environment, and the script of this tree."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        async with EmbeddedServer(Path(folder), port=0, durability="process") as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                drain.__file__,
                server.url,
                str(jobs),
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(roots(tree))},
            )
            try:
                said, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
            finally:
                if process.returncode is None:
                    process.kill()
    assert process.returncode == 0, f"the drain with the packages of {tree} failed"
    figures: dict[str, Any] = json.loads(said)
    assert Path(figures["packages"]).is_relative_to(tree), f"{figures['packages']} was measured, not {tree}"
    return figures


async def compare(commit: str, pairs: int, jobs: int) -> dict[str, list[float]]:
    """Return, for each pair, how many percent more jobs a second and CPU a job this tree has than the commit.

    Each is measured on a fresh server of this tree: one that has run jobs before is faster. Who is first alternates.
    """
    found: dict[str, list[float]] = {"against": [], "against cpu": []}
    with tree_of(commit) as tree:
        for number in range(pairs):
            by = {
                each: await drain_with(each, jobs) for each in ((tree, HERE) if number % 2 else (HERE, tree))
            }
            found["against"].append((by[HERE]["jobs/s"] / by[tree]["jobs/s"] - 1) * 100)
            found["against cpu"].append((by[HERE]["us"] / by[tree]["us"] - 1) * 100)
    return found
