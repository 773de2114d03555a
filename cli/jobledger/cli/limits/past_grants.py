"""`jobledger limits verify` and `simulate`: check past grants, and simulate other limits."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC
from typing import Annotated, Final

import msgspec
import typer

from jobledger.admin.grants_again import SimulatedWaits, compare_grants, simulate_limits
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import LIMITS
from jobledger.cli.text import Cell, shortened
from jobledger.cli.times import parse_range
from jobledger.ledger.model.limits.simulation import KeyWaits
from jobledger.ledger.model.times import shown_time, time_text

_ROWS_MAX: Final = 20
_WISH: Final = re.compile(r"([^=]+)=([\w.+-]{1,30})", flags=re.ASCII)
_Range = Annotated[
    str,
    typer.Option("--at", metavar="FROM/TO", help="Which span of time, such as `last friday 09:00/10:00`."),
]
_Wishes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="LIMIT[.FIELD]=VALUE",
        help="Slots of a limit or of one key, or another field, such as api.rate=5; may be repeated.",
    ),
]


@command(LIMITS, "verify")
async def verify(cli: Cli) -> None:
    """Decide every grant again and list those with another result: whose turn was it? A diagnosis, not a proof."""
    async with cli.ledger() as ledger:
        found = await compare_grants(ledger)
    output = cli.output
    if output.as_json:
        output.object(found)
        return
    more = {
        "of which the ledger does not tell when their author heard of starts": found.unknown_starts,
        "of which it does not tell who was on the way out for a limit's mode": found.unknown_cancels,
        "whose authors knew what is in the archive now": found.archived,
        "by the rules of another version": found.other_policy,
    }
    if not found.grants and not any(more.values()):
        output.say("nobody was granted anything yet")
        return
    same = found.grants - found.different
    output.say(f"{same:,} of {found.grants:,} grants ({found.jobs:,} jobs) come out the same")
    for why, count in more.items():
        if count:
            output.say(f"not compared: {count:,} {why}")
    if found.differences:
        rows = [
            (
                f"{each.stream_sequence}",
                shortened(each.recorded, 60),
                shortened(each.recomputed or "nobody", 60),
            )
            for each in found.differences[:_ROWS_MAX]
        ]
        output.table(("grant at>", "was granted", "whose turn it was"), rows)


@command(LIMITS, "simulate")
async def simulate(cli: Cli, *, at: _Range, wishes: _Wishes = None) -> None:
    """Tell how long the jobs of a span of time would have waited with other limits; changes nothing."""
    begin, end = parse_range("--at", at)
    wished = dict(_wish(each) for each in wishes or ())
    async with cli.ledger() as ledger:
        found = await simulate_limits(ledger, begin, min(end, ledger.clock.now()), wished)
    if cli.output.as_json:
        cli.output.object(
            {**msgspec.structs.asdict(found), "begin": time_text(begin), "end": time_text(found.end)}
        )
    else:
        _tell(cli, found)


def _wish(text: str) -> tuple[str, int | float | str | None]:
    """Read `LIMIT=N` or `LIMIT.FIELD=VALUE`. Raises: UsageError."""
    found = _WISH.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--set {text[:60]!r} is not LIMIT=N or LIMIT.FIELD=VALUE, such as tenant=5, tenant:acme.rate=20 or api=none"
        )
    name, value = found.groups()
    if value == "none":
        return name, None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value  # a word, such as the mode


def _tell(cli: Cli, found: SimulatedWaits) -> None:
    output = cli.output
    if not found.simulated:
        output.say("no job waited for a limit in that span")
        return
    span = f"{shown_time(found.begin.astimezone(UTC))} to {shown_time(found.end.astimezone(UTC))}"
    output.say(f"{span}: jobs waited {found.waits:,} time{'s' if found.waits > 1 else ''}")
    worst = sorted(found.simulated.values(), key=lambda each: (-each.p99_s, each.key))
    rows = [_cells(each, found.recorded.get(each.key)) for each in worst[:_ROWS_MAX]]
    output.table(("limit", "waits>", "p50 was>", "p50 new>", "p99 was>", "p99 new>", "longest>"), rows)
    if len(worst) > _ROWS_MAX:
        output.say(f"and {len(worst) - _ROWS_MAX:,} more keys, which wait less")
    starving = [each for each in worst if each.starves]
    for each in starving[:_ROWS_MAX]:
        jobs = "1 job waits" if each.jobs == 1 else f"{each.jobs:,} jobs wait"
        output.say(f"{each.key} starves: {jobs}, and none would be granted")


def _cells(each: KeyWaits, was: KeyWaits | None) -> tuple[Cell, ...]:
    p50, p99 = ("", "") if was is None else (_seconds(was.p50_s), _seconds(was.p99_s))
    return (
        shortened(each.key, 40),
        f"{each.jobs:,}",
        p50,
        _seconds(each.p50_s),
        p99,
        _seconds(each.p99_s),
        _seconds(each.longest_s),
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:,.1f} s"
