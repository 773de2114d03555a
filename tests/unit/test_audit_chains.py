"""The checker on the chains of locks and reactors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.stories import (
    BEGIN,
    Story,
    changed,
    check,
    found,
)

from jobledger.ledger.model import lock as lock_events
from jobledger.ledger.model.reactor import REACTOR, Archived, SealRecorded


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


# Reactors.


def sealed(number: int, **changes: Any) -> SealRecorded:
    fields: dict[str, Any] = {
        "reactor": "seals",
        "at": BEGIN,
        "by": "s",
        "from_sequence": number,
        "to_sequence": number,
        "merkle_root": "a" * 64,
        "head_hash": "b" * 64,
        "key": "c" * 64,
        "signature": "d" * 128,
    }
    return SealRecorded(**fields | changes)


def reactors() -> Story:
    """Two seals, and two runs of the archive, all of them linked."""
    story = Story()
    for number in (1, 2):
        story.enqueue(f"j{number}")
        story.react(sealed(number))
        story.archive(number)
    return story


def test_reactors_have_chains_of_their_own() -> None:
    story = reactors()
    report = check(story.messages)
    assert (report.sound, report.seals, report.archived_through) == (True, 2, 2)


def test_damage_to_a_reactors_chain_is_found() -> None:
    story = reactors()
    (first_seal, second_seal), (first_archive, _) = _places(story, "sealed"), _places(story, "archived")
    flipped = [*story.messages]
    flipped[first_seal - 1] = changed(flipped[first_seal - 1], b'"by":"s"', b'"by":"t"')
    assert found(check(flipped)) == [(second_seal, "reactor seals", "chain")]
    for subject in ("ledger.reactor.archive.sealed", "ledger.reactor.seals.archived"):
        moved = [*story.messages]
        moved[first_seal - 1] = msgspec.structs.replace(moved[first_seal - 1], subject=subject)
        name = "reactor seals" if subject.endswith("archived") else "reactor archive"
        assert found(check(moved)) == [(first_seal, name, "subject")]
    unreadable = [*story.messages]
    unreadable[first_archive - 1] = msgspec.structs.replace(unreadable[first_archive - 1], data=b"{}")
    assert found(check(unreadable))[0] == (first_archive, "reactor archive", "readable")
    headless = [msgspec.structs.replace(story.messages[second_seal - 1], stream_sequence=1)]
    assert found(check(headless)) == [(1, "reactor seals", "chain")]
    late = [msgspec.structs.replace(story.messages[second_seal - 1], stream_sequence=5)]
    assert check(late, from_sequence=5).sound


def _places(story: Story, event: str) -> list[int]:
    return [each.stream_sequence for each in story.messages if each.subject.endswith(f".{event}")]


def test_an_event_in_another_reactors_chain_and_a_time_without_zone_are_found() -> None:
    story = Story()
    story.react(sealed(1, reactor="archive"))
    story.react(sealed(1))
    story.messages[1] = changed(story.messages[1], b'Z","by"', b'","by"')
    assert found(check(story.messages)) == [
        (1, "reactor archive", "subject"),
        (2, "reactor seals", "readable"),
    ]


@pytest.mark.parametrize("through", [1, 2, 9])
def test_an_archive_that_goes_back_or_ahead_is_found(through: int) -> None:
    story = reactors()
    newest = _places(story, "archived")[-1]
    event = REACTOR.decode(story.messages[newest - 1])
    assert isinstance(event, Archived)
    sequence = story.react(msgspec.structs.replace(event, through_sequence=through if through < 9 else 99))
    assert found(check(story.messages)) == [(sequence, "reactor archive", "archive")]
