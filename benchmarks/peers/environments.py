"""What the peers are installed in: an environment each, below .cache/peers, made once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from peers.systems import CACHE, HERE, NODE, PROGRAMS, SYSTEMS, VALKEY, System, postgres_programs

_LIMIT_S: Final = 600.0


def missing(system: System) -> str:
    """Return "" for a system that can be measured here, else why it cannot; what it needs is installed first."""
    if system.server == "postgres" and postgres_programs() is None:
        return "PostgreSQL is not on this machine"
    needed = [VALKEY] if system.server == "valkey" else []
    needed += [system.packages] if system.packages else []
    return next((why for each in needed if (why := _install(each))), "")


def _install(name: str) -> str:
    """Make an environment unless it is there; return why that failed, or ""."""
    wanted = PROGRAMS / "package.json" if name == NODE else HERE / "pins" / f"{name}.txt"
    home = CACHE / name
    mark = home / wanted.name
    if (home / "done").exists() and mark.exists() and mark.read_bytes() == wanted.read_bytes():
        return ""
    print(f"installing {name} ...", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(wanted, mark)
    words = _npm(home) if name == NODE else _pip(home, wanted)
    if not words:
        return "npm is not on this machine"
    try:
        ran = subprocess.run(words, cwd=home, capture_output=True, text=True, check=False, timeout=_LIMIT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"{words[0]} took longer than {_LIMIT_S:g} s to install {name}"
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines() or ["it said nothing"]
        return f"{name} cannot be installed: {lines[-1][:200]}"
    (home / "done").touch()
    return ""


def _npm(home: Path) -> list[str]:
    npm = shutil.which("npm") if shutil.which("node") else None
    words = ["install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]
    return [npm, *words, str(home)] if npm else []


def _pip(home: Path, wanted: Path) -> list[str]:
    venv.create(home, with_pip=False)
    words = ["install", "--quiet", "--require-hashes", "--no-deps", "--requirement", str(wanted)]
    return [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), *words]


def version(name: str) -> str:
    """Return the version of an installed peer."""
    system = SYSTEMS[name]
    if system.packages == NODE:
        manifest = CACHE / NODE / "node_modules" / name / "package.json"
        return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])
    return pinned(system.packages, name)


def pinned(environment: str, package: str) -> str:
    """Return the version of a package in an environment's pins."""
    lines = (HERE / "pins" / f"{environment}.txt").read_text(encoding="utf-8").splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))
