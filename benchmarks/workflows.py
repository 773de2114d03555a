"""What workflows cost, and what they are to cost at the most: one table.

    python benchmarks/workflows.py [--peers] [--against COMMIT] [--only PART ...] [--pairs N] [--rounds N] [--quick] [--json]

Each figure is a median with the middle half of what was measured behind it, in `--rounds` rounds on fresh servers.
`--peers` adds DBOS on SQLite and PostgreSQL, by turns with steps of ours; `--against` the drain of ordinary jobs beside
that with the packages of another commit, `--pairs` times. `--quick` measures next to nothing: it is a test of this
program. Figures drift with the machine, so let nothing else run.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import against
import against_dbos
import runs
import table
from table import Figures
from targets import Row

from jobledger.workers.process import tune_collector


class Sizes(NamedTuple):
    """How much of everything; the targets are about what stands here."""

    pairs: int = 9
    rounds: int = 5
    plain: int = 20_000  #: ordinary jobs of each drain
    steps: int = 2_000
    items: int = 1_000
    many_items: int = 10_000
    signals: int = 300  #: runs that are signalled one after the other, in each of the pairs
    resumed: int = 300
    parked: int = 10_000
    peer_steps: int = 1_000


QUICK: Final = Sizes(
    pairs=1,
    rounds=1,
    plain=200,
    steps=100,
    items=20,
    many_items=40,
    signals=5,
    resumed=5,
    parked=20,
    peer_steps=5,
)

#: By part, in the order of the table, and by the name of the figure.
ROWS: Final[Mapping[str, Mapping[str, Row]]] = {
    "inline": {
        "ms": Row("step in the run's own process", "ms", most=0.25, digits=3),
        "cpu": Row("  worker's CPU a step", "us", most=150, digits=0),
        "server": Row("  server's CPU a step", "us", digits=0),
    },
    "durable": {
        "ms": Row("  every append fsynced", "ms", most=0.6, digits=3),
        "cpu": Row("  worker's CPU a step, fsynced", "us", digits=0),
    },
    "branches": {
        "ms": Row("step, 50 branches side by side", "ms", most=0.12, digits=3),
        "cpu": Row("  worker's CPU a step, 50 branches", "us", digits=0),
        "server": Row("  server's CPU a step, 50 branches", "us", digits=0),
    },
    "map": {
        "s": Row("map of {items:,}, limit 50, on two workers", "s", most=0.8, digits=2),
        "events": Row("  events of the run", "", digits=0),
    },
    "durable map": {
        "s": Row("  mapped, every append fsynced", "s", most=2, digits=2),
    },
    "large map": {
        "s": Row("map of {many_items:,}, limit 200, on two workers", "s", most=8, digits=2),
        "events": Row("  events of the run", "", most=600, digits=0),
        "MB": Row("  bytes of the run's chain", "MB", most=0.5, digits=3),
    },
    "signals": {
        "p50": Row("signal to the function that goes on, p50", "ms", most=2, digits=2),
        "p99": Row("  p99", "ms", most=6, digits=2),
    },
    "resume": {
        "server": Row("resumed run of 15 events: server's CPU", "ms", most=0.5, digits=2),
        "worker": Row("  worker's CPU", "ms", digits=2),
        "server elsewhere": Row("  server's CPU, in a worker that reads its chain", "ms", digits=2),
    },
    "parked": {
        "slots": Row("{parked:,} parked runs: slots", "", most=0, digits=0),
        "memory": Row("  memory of the worker", "MB", most=100, digits=0),
        "s": Row("  until the last one was parked", "s", digits=1),
    },
    "against": {
        "against": Row("ordinary jobs: drain, above {commit}", "%", least=-3, or_noise=True),
        "against cpu": Row("  worker's CPU a job", "%"),
    },
    "peers": {
        "ours": Row("step beside DBOS", "ms", digits=3),
        "ours fsynced": Row("  ours, every append fsynced", "ms", digits=3),
        "sqlite": Row("  DBOS on SQLite", "ms", digits=2),
        "postgres": Row("  DBOS on PostgreSQL", "ms", digits=2),
        "ahead": Row("  times ahead of the faster one", "x", least=5),
        "ahead fsynced": Row("  fsynced, times ahead of PostgreSQL, fsynced too", "x", least=5),
    },
}


def measured(part: str, sizes: Sizes, commit: str) -> Coroutine[Any, Any, Figures]:
    """Return the measurement of a part, ready to run."""
    pairs, rounds = sizes.pairs, sizes.rounds
    return {
        "inline": partial(runs.inline_steps, rounds, sizes.steps),
        "durable": partial(runs.inline_steps, rounds, sizes.steps, "power"),
        "branches": partial(runs.branched_steps, rounds, sizes.steps),
        "map": partial(runs.maps, rounds, sizes.items, 50),
        "durable map": partial(runs.maps, rounds, sizes.items, 50, "power"),
        "large map": partial(runs.maps, rounds, sizes.many_items, 200),
        "signals": partial(runs.signals, pairs, sizes.signals),
        "resume": partial(runs.resumptions, rounds, sizes.resumed),
        "parked": partial(runs.parkings, 1, sizes.parked),
        "against": partial(against.compare, commit, pairs, sizes.plain),
        "peers": partial(against_dbos.compare, rounds, sizes.peer_steps),
    }[part]()


def main() -> None:
    """Print the table."""
    reader = table.parser(__doc__, ROWS, pairs=Sizes().pairs, rounds=Sizes().rounds)
    reader.add_argument(
        "--peers", action="store_true", help="beside DBOS, which is installed in .cache/dbos first"
    )
    options = table.chosen(reader)
    commit = against.commit_named(options.against) if options.against else ""
    sizes = (QUICK if options.quick else Sizes())._replace(**table.given(options))
    tune_collector()
    table.show(
        ROWS,
        lambda part: measured(part, sizes, commit),
        is_skipped=lambda part: table.skipped(part, options, ("against", "peers")),
        values={**sizes._asdict(), "commit": commit[:7] or "a commit"},
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
