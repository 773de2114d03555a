"""The systems that are measured: what they need, how they are started, and how much of everything each is given."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

HERE: Final = Path(__file__).resolve().parent
PROGRAMS: Final = HERE / "programs"
CACHE: Final = HERE.parents[1] / ".cache" / "peers"

ServerKind = Literal["nats", "valkey", "postgres"]
Setting = Literal["plain", "durable"]
SETTINGS: Final[tuple[Setting, ...]] = ("plain", "durable")


class Sizes(NamedTuple):
    """How many jobs a measure gets: those that take about a second."""

    bulk: int
    single: int
    drain: int


class System(NamedTuple):
    """One of those that are compared."""

    title: str
    server: ServerKind
    sizes: Sizes
    packages: str = ""  #: the environment below `CACHE`; "": this one
    concurrencies: tuple[int, ...] = (10, 100, 400)  #: of one worker
    concurrency: int = 100  #: of each of two workers, and of the one whose latency is measured
    gap_s: float = 0.005  #: between jobs, for latency at rest
    about: str = ""  #: what a reader has to know of how it runs

    def command(self, name: str, *role: str) -> list[str]:
        """Return the command line of its client or worker."""
        if self.packages == NODE:
            return ["node", str(PROGRAMS / f"{name}_jobs.js"), *role]
        python = str(CACHE / self.packages / "bin" / "python") if self.packages else sys.executable
        return [python, "-P", "-m", "peers.programs.load", f"{name}_jobs", *role]


NODE: Final = "node"
_THREADS: Final = 16
_PROCESSES: Final = 2
#: The server in memory and on disk that most peers need; from a package, as this is no system's own.
VALKEY: Final = "valkey"
OURS: Final = "jobledger"
BARE: Final = "bare"

#: By the name of its program.
SYSTEMS: Final[Mapping[str, System]] = {
    OURS: System("jobledger", "nats", Sizes(12_000, 3_000, 12_000)),
    "bullmq": System("BullMQ", "valkey", Sizes(12_000, 4_000, 12_000), NODE, about="in Node.js"),
    BARE: System(
        "nats-server alone",
        "nats",
        Sizes(12_000, 3_000, 12_000),
        concurrencies=(10, 100, 400),
        about="three conditional appends and an acknowledgement a job: what jobledger cannot pass",
    ),
    "arq": System("arq", "valkey", Sizes(1_500, 1_000, 1_500), "arq", about="it looks for jobs each 0.5 s"),
    "saq": System("SAQ", "valkey", Sizes(2_000, 1_000, 1_500), "saq"),
    "dramatiq": System(
        "Dramatiq",
        "valkey",
        Sizes(3_000, 1_500, 3_000),
        "dramatiq",
        (_THREADS,),
        _THREADS,
        about=f"{_THREADS} threads a worker",
    ),
    "rq": System(
        "RQ",
        "valkey",
        Sizes(1_000, 500, 400),
        "rq",
        (1,),
        1,
        0.01,
        about="its worker without a fork for each job",
    ),
    "celery": System(
        "Celery",
        "valkey",
        Sizes(1_500, 1_000, 1_500),
        "celery",
        (_PROCESSES,),
        _PROCESSES,
        about=f"{_PROCESSES} processes a worker; it loses the jobs of one that is killed, as it is set by default",
    ),
    "procrastinate": System(
        "Procrastinate",
        "postgres",
        Sizes(1_000, 300, 400),
        "procrastinate",
        gap_s=0.02,
        about="PostgreSQL fsyncs each commit as it is, so it has one setting",
    ),
}


def settings_of(system: System) -> tuple[Setting, ...]:
    """Return the settings of its server that are compared."""
    return ("durable",) if system.server == "postgres" else SETTINGS


def postgres_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None where this machine has none."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return homes[-1].parent if homes else None
