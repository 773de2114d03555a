"""What a simulated run does: stages of steps, those of one stage waited for together."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from jobledger.ledger.model.runs.orders import ChildOrder

Kind = Literal["step", "sleep", "wait", "map", "graph"]
SIGNALS = ("a", "b")


class Spec(msgspec.Struct, frozen=True):
    """One step."""

    key: str
    kind: Kind
    target: str
    order: ChildOrder | None = None
    wait_s: float | None = None  #: how long a sleep or a wait lasts


class Program(msgspec.Struct, frozen=True):
    """A whole run."""

    stages: tuple[tuple[Spec, ...], ...]
    undos: int  #: registered from the beginning
    failing: frozenset[
        int
    ]  #: items of groups whose jobs become dead letters, until a person has requeued them
    catches: bool  #: whether the code goes on where a group failed


def make_program(random: Random) -> Program:
    """Return a run that is mostly about children."""
    stages: list[tuple[Spec, ...]] = []
    for number in range(random.choice((1, 1, 2, 2, 3))):
        beside = random.random() < 0.3
        stages.append(tuple(_spec(random, f"{number}.{part}") for part in range(2 if beside else 1)))
    failing = frozenset(item for item in range(7) if random.random() < random.choice((0.0, 0.0, 0.2, 0.5)))
    return Program(tuple(stages), random.choice((0, 0, 1)), failing, random.random() < 0.5)


def _spec(random: Random, name: str) -> Spec:
    kind: Kind = random.choice(("map", "map", "map", "graph", "graph", "wait", "sleep", "step"))
    key = f"{name}/{kind}"
    if kind in ("map", "graph"):
        return Spec(key, kind, "child", order=_order(random, kind))
    if kind == "wait":
        return Spec(key, kind, random.choice(SIGNALS), wait_s=random.choice((None, None, 3.0)))
    return Spec(key, kind, kind, wait_s=random.choice((0.0, 2.0)) if kind == "sleep" else None)


def _order(random: Random, kind: Kind) -> ChildOrder:
    count = random.randint(1, 6)
    after: tuple[tuple[int, ...], ...] = ()
    if kind == "graph":
        after = tuple(tuple(need for need in range(item) if random.random() < 0.4) for item in range(count))
    return ChildOrder(
        task="child",
        queue="children",
        count=count,
        limit=random.choice((0, 1, 2, 3)),
        max_attempts=1_000_000,
        on_failure=random.choice(("stop", "collect")),
        on_dead_letter=random.choice(("wait", "fail")),
        on_parent_end=random.choice(("cancel", "cancel", "cancel", "cancel", "abandon")),
        after=after,
        always=(count - 1,) if after and random.random() < 0.3 else (),
    )
