"""The links of one chain: what a person is told of them is what a check of the whole ledger says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from tests.support.stories import NAMES, Story, check, found, rich, stored_in
from tests.support.tables import each_row

from jobledger.audit.verify.links import Run, broken_link, check_chain, check_history
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent, encode
from jobledger.ledger.model.memory import MemoryLog

MESSAGES: Sequence[Message] = rich().messages


def chain_of(message: Message) -> tuple[str, ...]:
    """Return the words that all subjects of a chain begin with."""
    words = message.subject.split(".")
    return tuple(words[: 2 + len(AGGREGATES[words[1]].key)])


def flipped(at: int) -> list[Message]:
    """Return the events with one byte of one of them changed, which still reads as an event."""
    messages = list(MESSAGES)
    old = messages[at]
    data = old.data.replace(b'"by":"', b'"by":"_')
    assert data != old.data
    if isinstance(old, StoredEvent):
        event = msgspec.structs.replace(old.event, by=f"_{old.event.by}")
        messages[at] = msgspec.structs.replace(old, data=data, event=event)
    else:
        messages[at] = msgspec.structs.replace(old, data=data)
    return messages


@each_row("at", range(len(MESSAGES)))
def test_a_changed_event_breaks_the_link_that_the_checker_finds_broken(at: int) -> None:
    messages = flipped(at)
    chain = [each for each in messages if chain_of(each) == chain_of(messages[at])]
    told = [sequence for sequence, _, rule in found(check(messages)) if rule == "chain"]
    assert check_chain(chain).broken_at == (told[0] if told else None)
    assert check_chain([each for each in MESSAGES if chain_of(each) == chain_of(messages[at])]).is_unbroken


@each_row("at", range(len(MESSAGES)))
def test_a_missing_event_breaks_the_link_after_it(at: int) -> None:
    chain = [each for each in MESSAGES if chain_of(each) == chain_of(MESSAGES[at])]
    place = chain.index(MESSAGES[at])
    left = chain[:place] + chain[place + 1 :]
    told = check_chain(left)
    assert told.broken_at == (left[place].stream_sequence if place < len(left) else None)
    if place == 0 and left:  # what is missing may have been archived where the ledger begins later
        assert check_chain(left, begins_at=2).archived_before


def again(messages: Sequence[Any], sequence: int) -> list[Message]:
    """Return a job's events followed by the same with a first event, as somebody plants who wants to hide the others."""
    first = messages[0]
    event = msgspec.structs.replace(first.event, by="mallory")
    planted = msgspec.structs.replace(first, event=event, data=encode(event), stream_sequence=sequence)
    return [*messages, planted]


def test_a_chain_begins_again_only_where_an_archive_run_had_taken_all_of_it() -> None:
    story = Story()
    story.enqueue("a")
    messages = again(story.messages, 9)
    assert check_chain(messages).broken_at == 9
    assert check_chain(messages, runs=[Run(stream_sequence=5, through=1)]).is_unbroken
    assert check_chain(messages, runs=[Run(stream_sequence=5, through=0)]).broken_at == 9
    late = check_chain(messages, runs=[Run(stream_sequence=10, through=1)])
    assert late.broken_at == 9, "at that time nothing was archived"


def test_the_history_of_a_job_is_checked_by_what_its_ledger_says() -> None:
    async def run() -> None:
        log = await stored_in(rich(), MemoryLog())
        ref = rich().ref("a") if rich().chains.get(rich().ref("a")) else next(iter(rich().chains))
        history = await log.read_chain(NAMES.chain(ref))
        told = await check_history(log, history)
        assert told.text() == f"chain of {len(history)} events: unbroken"
        cut = await check_history(log, history[1:])
        assert cut.broken_at == history[1].stream_sequence
        assert cut.text().startswith(f"chain of {len(history) - 1} event")
        assert f"BROKEN at {cut.broken_at}: it follows" in cut.text()

    asyncio.run(run())


def test_no_event_at_all_is_no_broken_chain() -> None:
    told = check_chain([])
    assert (told.events, told.is_unbroken, told.archived_before) == (0, True, False)


def test_a_first_event_names_none() -> None:
    assert broken_link("", None) is None
    sentence = broken_link("ab", None, of="lock")
    assert sentence == "it follows 'ab', and no event of its lock is before it"
