"""What a verdict does not prove is said in full: whatever it leaves out, no rewriting goes unseen there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.audit.seals.keys import TrustedKeys, make_keys, read_signer, read_trusted
from jobledger.audit.seals.seals import Seal, read_seals, seal_next
from jobledger.audit.verify import Checker, CrossCheck, Report, verify
from jobledger.audit.verify.seals import SealWitness, seals_as_witness
from jobledger.audit.verify.unproven import ORIGIN, SIGNATURES, TIMES, unproven
from jobledger.ledger.model.chain import EMPTY_CHAIN, commit
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names

AT = datetime(2026, 1, 2, tzinfo=UTC)
HEAD = 16
SEALED = (4, 9, 13)  # a seal over everything before is stored at 5, 10 and 14


def ranges_of(sentence: str) -> set[int]:
    """Return the stream sequences that the sentence about rewriting names."""
    named: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", sentence.split(" not rewritten", maxsplit=1)[0]):
        named.update(range(int(first), int(last or first) + 1))
    return named


def not_rewritten(report: Report) -> set[int]:
    """Return what the report does not except from its proof."""
    excepted = [ranges_of(each) for each in report.not_proven if "not rewritten" in each]
    everything = set(range(report.from_sequence, report.head_sequence + 1))
    return everything - set[int]().union(*excepted)


# The sentences, over every combination of what a check can have been told.

INTACT: tuple[tuple[tuple[int, int], ...], ...] = ((), ((1, 6),), ((4, 12),), ((1, 3), (7, 9)), ((1, 20),))
ROWS = [
    dict(zip(("begin", "head", "part", "end", "intact", "more", "through", "signed"), row, strict=True))
    for row in product(
        (1, 5), (4, 12), (False, True), (False, True), INTACT, INTACT, (0, 9), (None, True, False)
    )
]


@each_row("row", ROWS)
def test_the_statement_follows_from_the_facts(row: dict[str, Any]) -> None:
    begin, head = row["begin"], row["head"]
    seals = CrossCheck(what="seals", sentence="", agrees=True, intact=row["intact"], signed=row["signed"])
    kept = CrossCheck(
        what="earlier report", sentence="", agrees=True, intact=row["more"], through=row["through"]
    )
    empty = Checker(Names()).finish()
    report = msgspec.structs.replace(
        empty, from_sequence=begin, head_sequence=head, events=head - begin + 1, compared=(seals, kept)
    )
    said = tuple(unproven(report, is_part=row["part"], has_end=row["end"]))
    report = msgspec.structs.replace(report, not_proven=said)
    covered = {n for first, last in (*row["intact"], *row["more"]) for n in range(first, last + 1)}
    assert not_rewritten(report) == covered & set(range(begin, head + 1))
    assert any("before 5" in each for each in said) == (begin == 5)
    ends = [each for each in said if "cut off" in each]
    assert len(ends) == row["end"]
    assert all(("beyond 9" in each) == (row["through"] == 9) for each in ends)
    assert (SIGNATURES in said) == (row["signed"] is False)
    assert said.count(TIMES) == (head >= begin)
    export = tuple(unproven(msgspec.structs.replace(report, what="export"), is_selection=True))
    anchored = bool(row["intact"] or row["more"] or row["through"])
    assert (ORIGIN in export) == (not anchored)
    assert "selection" in export[0]
    text = report.text().splitlines()
    assert [each.removeprefix("not proven: ") for each in text if "not proven: " in each] == list(said)


# The same, held to what it says: an attacker who has the server's disk and every key but the sealer's.


class Keys(NamedTuple):
    """The sealer's key, the attacker's, and the one that is trusted."""

    ours: Path
    theirs: Path
    trusted: TrustedKeys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    public, _ = make_keys(folder / "ours.pem")
    make_keys(folder / "theirs.pem")
    return Keys(folder / "ours.pem", folder / "theirs.pem", read_trusted([public]))


async def ledger(keys: Keys, changed: int = 0) -> MemoryLog:
    """Return a sealed ledger; one where the event `changed` is another, and whatever comes after follows from that."""
    log = MemoryLog()
    for sequence in range(1, HEAD + 1):
        if sequence - 1 in SEALED:
            signer = read_signer(keys.theirs if changed and sequence > changed else keys.ours)
            await seal_next(log, signer, by="mallory" if changed == sequence else "ada", at=AT)
            continue
        ref = JobRef(queue="email", job_id=f"job-{sequence}")
        order = Enqueue(ref=ref, task="tests.send", order=Order(input=msgspec.Raw(b"{}")))
        by = "mallory" if changed == sequence else "shop"
        await commit(log, EMPTY_CHAIN, decide(None, order, Stamp(at=AT, by=by)))
    assert (await log.head()).last_sequence == HEAD
    return log


class Told(NamedTuple):
    """What a check is told."""

    begin: int
    last: int | None
    kept: Sequence[Seal]
    before: Report | None
    trusted: TrustedKeys | None


async def checked(log: MemoryLog, told: Told) -> Report:
    witnesses: list[SealWitness] = []
    own = await seals_as_witness(log, from_sequence=told.begin, through=told.last, trusted=told.trusted)
    if own is not None:
        witnesses.append(own)
    kept = [each for each in told.kept if told.last is None or each.seal.to_sequence <= told.last]
    if kept:
        witnesses.append(
            SealWitness(
                kept, Names(), from_sequence=told.begin, trusted=told.trusted, published=True, own=own
            )
        )
    return await verify(
        log, from_sequence=told.begin, to_sequence=told.last, before=told.before, witnesses=witnesses
    )


async def all_told(log: MemoryLog, keys: Keys) -> list[Told]:
    seals = await read_seals(log)
    reports = {begin: await verify(log, from_sequence=begin, to_sequence=8) for begin in (1, 3)}
    kept = ((), seals, seals[-1:], seals[:1], (seals[0], seals[2]))
    return [
        Told(begin, last, each, reports[begin] if has_report else None, trusted)
        for begin, last, each, has_report, trusted in product(
            (1, 3), (None, 15), kept, (False, True), (None, keys.trusted)
        )
    ]


def rewritten_unseen(honest: Report, forged: Sequence[Report]) -> Iterator[int]:
    """Yield the stream sequences at which a change went unseen that the honest verdict calls proven."""
    proven = not_rewritten(honest)
    for sequence, report in enumerate(forged, start=1):
        if sequence in proven and report.sound:
            yield sequence


def test_no_rewriting_goes_unseen_where_the_verdict_excepts_nothing(keys: Keys) -> None:
    async def run() -> None:
        log = await ledger(keys)
        forgeries = [await ledger(keys, changed) for changed in range(1, HEAD + 1)]
        seen = set[frozenset[int]]()
        for told in await all_told(log, keys):
            honest = await checked(log, told)
            assert honest.sound, honest.text()
            found = [await checked(forgery, told) for forgery in forgeries]
            assert list(rewritten_unseen(honest, found)) == [], (told, honest.not_proven)
            after = {*range(told.begin, honest.head_sequence + 1)} - not_rewritten(honest)
            assert HEAD in after or told.last == HEAD - 1
            assert all(found[each - 1].sound for each in after if each > SEALED[-1] + 1), "said for nothing"
            seen.add(frozenset(not_rewritten(honest)))
        assert {frozenset(), frozenset(range(1, 14)), frozenset(range(1, 9))} <= seen

    asyncio.run(run())


def test_what_was_not_compared_does_not_count_as_agreeing(keys: Keys) -> None:
    async def run() -> None:
        log = await ledger(keys)
        seals = await read_seals(log)
        before = await verify(log, to_sequence=8)
        report = await verify(log, before=before)
        (line,) = report.compared
        assert (line.what, line.agrees, line.intact) == ("earlier report", True, ((1, 8),))
        assert "earlier report: stream sequence 1 to 8 is what it was then" in report.text()
        empty = Checker(Names()).finish()
        assert [each.agrees for each in (await verify(log, before=empty)).compared] == [None]

        published = SealWitness(seals[:1], Names(), from_sequence=3, published=True, later=2)
        report = await verify(log, from_sequence=3, witnesses=[published])
        (line,) = report.compared
        assert (line.agrees, line.intact, line.through) == (None, (), 0)
        assert "0 of 0 agree with the events; 1 begin before what was read; 2 end after" in line.sentence
        assert msgspec.to_builtins(line)["agrees"] is None

    asyncio.run(run())
