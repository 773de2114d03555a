"""The checker on the chains of locks and reactors."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.stories import (
    BEGIN,
    Story,
    changed,
    check,
    found,
)

from jobledger.ledger import lock_events


def _acquired_while_held(story: Story) -> int:
    return story.append_lock(
        lock_events.Acquired(scope="account", lock="7", at=BEGIN, by="x", holder="x", lease_s=15)
    )


def _released_by_nobody(story: Story) -> int:
    return story.append_lock(
        lock_events.Released(scope="account", lock="7", at=BEGIN, by="x", fencing_number=99)
    )


def _took_over_nothing(story: Story) -> int:
    story.release()
    return story.append_lock(
        lock_events.Acquired(scope="account", lock="7", at=BEGIN, by="x", holder="x", lease_s=15, took_over=1)
    )


@pytest.mark.parametrize("plant", [_acquired_while_held, _released_by_nobody, _took_over_nothing])
def test_a_lock_that_two_held_is_found(plant: Callable[[Story], int]) -> None:
    story = Story()
    story.acquire("w1")
    sequence = plant(story)
    assert found(check(story.messages)) == [(sequence, "lock account/7", "transition")]


def test_damage_to_a_locks_chain_is_found() -> None:
    story = Story()
    story.acquire("w1")
    story.release()
    story.acquire("w2")
    flipped = [*story.messages]
    flipped[1] = changed(flipped[1], b'"by":"h"', b'"by":"i"')
    assert found(check(flipped)) == [(3, "lock account/7", "chain")]
    moved = [msgspec.structs.replace(story.messages[0], subject="ledger.lock.account.8.acquired")]
    assert found(check(moved)) == [(1, "lock account/8", "subject")]
    headless = [msgspec.structs.replace(story.messages[1], stream_sequence=1)]
    assert [each[2] for each in found(check(headless))] == ["chain", "transition"]
    unreadable = [msgspec.structs.replace(story.messages[0], data=b"{}")]
    assert found(check(unreadable)) == [(1, "lock account/7", "readable")]
    assert check(story.messages[1:], from_sequence=2).sound
