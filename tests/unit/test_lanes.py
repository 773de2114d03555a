"""Where a consumer of work begins: at the first dispatch that a worker may still claim or hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.archiving import BOOM, CLAIM, DUE, World

from jobledger.ledger.model.commands import CancelJob, Command, Complete, Discard, Fail, Requeue, Snooze
from jobledger.ledger.nats.durables import consumer_config
from jobledger.ledger.nats.pauses import begin_at_living

pytestmark = pytest.mark.anyio

DONE: tuple[Command, ...] = (CLAIM, Complete(epoch=0))
DEAD: tuple[Command, ...] = (CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"))
#: What became of jobs whose dispatch needs no worker any more.
OVER: tuple[tuple[Command, ...], ...] = (
    DONE,
    (CancelJob(),),
    DEAD,
    (*DEAD, Discard()),
    (CLAIM, Snooze(epoch=0, until=DUE)),
    (CLAIM, Fail(epoch=0, error=BOOM, retry_at=DUE)),
)


async def begins(world: World) -> dict[str, Any]:
    names = world.log.names
    config = consumer_config(names.dispatches("email", "normal"), ack_wait_s=30, ack_pending_max=10)
    found = await begin_at_living(world.log, config)
    assert {name: found[name] for name in config if name != "deliver_policy"} == {
        name: config[name] for name in config if name != "deliver_policy"
    }
    return {"deliver_policy": found["deliver_policy"], "opt_start_seq": found.get("opt_start_seq")}


ALL = {"deliver_policy": "all", "opt_start_seq": None}


def at(sequence: int) -> dict[str, Any]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}


async def test_a_lane_without_dispatches_or_with_living_ones_alone_has_the_settings_it_always_had(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    assert await begins(world) == ALL
    await world.enqueue("low", *DONE, priority="low")
    assert await begins(world) == ALL
    await world.enqueue("waits")
    await world.enqueue("done", *DONE)
    assert await begins(world) == ALL


async def test_a_lane_begins_at_the_first_dispatch_that_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number, commands in enumerate(OVER):
        await world.enqueue(f"over{number}", *commands)
    head = (await world.log.head()).last_sequence
    assert await begins(world) == at(head + 1)
    running = await world.enqueue("running", CLAIM)
    await world.enqueue("waits")
    assert await begins(world) == at(running.dispatch_sequence)
    await world.do("running", Complete(epoch=0))
    again = await world.do("over2", Requeue())
    assert await begins(world) == at((await world.job("waits")).dispatch_sequence)
    await world.do("waits", *DONE)
    assert await begins(world) == at(again.dispatch_sequence)


async def test_a_lane_of_many_jobs_that_are_over_is_read_batch_by_batch(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(600):
        await world.enqueue(f"over{number}", CancelJob())
    waits = await world.enqueue("waits")
    assert await begins(world) == at(waits.dispatch_sequence)
