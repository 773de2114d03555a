"""What limits, schedules, unique jobs and paused queues cost, and what they are to cost at the most: one table.

    python benchmarks/limits.py [--against COMMIT] [--big] [--only PART ...] [--pairs N] [--rounds N] [--quick] [--json]

Each figure is a median with the middle half of what was measured behind it. What is compared takes turns within one
run, `--pairs` times; the rest is measured `--rounds` times on fresh servers. `--against` adds the drain of jobs without
limits with the packages of that commit; `--big` adds a million jobs that wait and a ledger of ten million events (about
20 minutes, 6 GB of disk, 8 GB of memory). `--quick` measures next to nothing: it is a test of this program. Figures drift
with the machine, so let nothing else run.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import against
import limited
import queues
import schedules
import table
import unique
from limited import Figures
from targets import ROWS

from jobledger.workers.process import tune_collector


class Sizes(NamedTuple):
    """How much each part measures; the targets hold for the defaults."""

    pairs: int = 9
    rounds: int = 3
    plain: int = 20_000  #: jobs without limits of each drain
    three: int = 50_000  #: jobs under three limits each
    fsynced: int = 10_000
    latency: int = 500  #: jobs one by one, of each kind and pair
    held: int = 300_000
    big: int = 1_000_000
    events: int = 10_000_000
    takeover: int = 20_000
    lease_s: float = limited.LEASE_S
    load: schedules.Load = schedules.Load()
    enqueues: int = 300  #: unique ones of each kind and round


QUICK: Final = Sizes(
    pairs=1,
    rounds=1,
    plain=200,
    three=400,
    fsynced=100,
    latency=10,
    held=200,
    big=200,
    events=400,
    takeover=1_500,
    lease_s=2.0,
    load=schedules.Load(schedules=5, workers=1, seconds=2.0, warm_s=0.5),
    enqueues=5,
)


async def ticks(rounds: int, load: schedules.Load) -> Figures:
    """Let schedules tick some rounds."""
    found = [await schedules.measure(load) for _ in range(rounds)]
    return {name: [each[name] for each in found] for name in ROWS["ticks"]}


async def pauses(rounds: int) -> Figures:
    """Pause and resume some rounds."""
    late, _, first = zip(*await queues.measure(rounds), strict=True)
    return {"paused": list(late), "resumed": list(first)}


def measured(part: str, sizes: Sizes, commit: str) -> Coroutine[Any, Any, Figures]:
    """Return the measurement of a part, ready to run."""
    pairs, rounds = sizes.pairs, sizes.rounds
    return {
        "against": partial(against.compare, commit, pairs, sizes.plain),
        "drain": partial(limited.drains, pairs, sizes.plain),
        "latency": partial(limited.latencies, pairs, sizes.latency),
        "limited": partial(limited.limited_drains, rounds, sizes.three, "process"),
        "fsynced": partial(limited.fsynced_drains, rounds, sizes.fsynced),
        "restart": partial(limited.restarts, rounds, sizes.held),
        "big": partial(limited.large_restarts, sizes.big, sizes.events),
        "takeover": partial(limited.takeovers, rounds, sizes.takeover, sizes.lease_s),
        "ticks": partial(ticks, rounds, sizes.load),
        "unique": partial(unique.measure, pairs, sizes.enqueues),
        "pause": partial(pauses, pairs),
    }[part]()


def main() -> None:
    """Print the table."""
    reader = table.parser(__doc__, ROWS, pairs=Sizes().pairs, rounds=Sizes().rounds)
    reader.add_argument("--big", action="store_true")
    options = table.chosen(reader)
    commit = against.commit_named(options.against) if options.against else ""
    sizes = (QUICK if options.quick else Sizes())._replace(**table.given(options))
    tune_collector()
    table.show(
        ROWS,
        lambda part: measured(part, sizes, commit),
        is_skipped=lambda part: table.skipped(part, options, ("against", "big")),
        values={
            **sizes._asdict(),
            "schedules": sizes.load.schedules,
            "commit": commit[:7] or "a commit",
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
