"""Seals: what was sealed cannot be changed, dropped or cut off unseen, and only a trusted key's seals count."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from jobledger.audit.seals import seals as sealing
from jobledger.audit.seals.keys import Signer, TrustedKeys, make_keys, read_signer, read_trusted
from jobledger.audit.seals.seals import Seal, SealCheck, newest_seal, read_published, read_seals, seal_next
from jobledger.audit.verify import verify
from jobledger.audit.verify.seals import SealWitness, seals_as_witness
from jobledger.ledger.model.chain import EMPTY_CHAIN, commit
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, WrongSequenceError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import REACTOR, SealRecorded
from jobledger.ledger.model.subjects import JobRef, Names

pytestmark = pytest.mark.anyio

NAMES = Names()
AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key's file, and its public key's."""
    path = tmp_path_factory.mktemp("keys") / "seal.pem"
    public, _ = make_keys(path)
    return path, public


@pytest.fixture
def signer(keys: tuple[Path, Path]) -> Signer:
    return read_signer(keys[0])


@pytest.fixture
def trusted(keys: tuple[Path, Path]) -> TrustedKeys:
    return read_trusted([keys[1]])


async def enqueue(log: MemoryLog, count: int, prefix: str = "job") -> None:
    for number in range(count):
        ref = JobRef(queue="email", job_id=f"{prefix}-{number}")
        order = Enqueue(ref=ref, task="tests.send", order=Order(input=msgspec.Raw(b"{}")))
        await commit(log, EMPTY_CHAIN, decide(None, order, Stamp(at=AT, by="tests")))


async def seal_all(log: MemoryLog, signer: Signer, events_max: int = 1_000) -> list[Seal]:
    made: list[Seal] = []
    while (seal := await seal_next(log, signer, by="ada", at=AT, events_max=events_max)) is not None:
        made.append(seal)
    return made


async def stored(log: MemoryLog) -> list[Message]:
    return [message async for batch in log.read_messages() for message in batch]


def problems(
    seals: Sequence[Seal],
    events: Sequence[tuple[int, bytes]],
    trusted: TrustedKeys | None,
    *,
    from_sequence: int = 1,
    whole: bool = True,
) -> tuple[SealCheck, list[str]]:
    """Feed events, as stream sequence and stored bytes, and return what was found."""
    check = SealCheck(seals, NAMES, from_sequence=from_sequence, trusted=trusted, whole=whole)
    found = [sentence for _, sentence in check.problems()]
    for sequence, data in events:
        found += [sentence for _, sentence in check.feed(sequence, hashlib.sha256(data).digest())]
    found += [sentence for _, sentence in check.finish(events[-1][0] if events else 0)]
    return check, found


async def sealed_ledger(signer: Signer) -> tuple[MemoryLog, list[Seal]]:
    """A ledger of 30 jobs in three ranges of sealing, with some events after the last seal."""
    log = MemoryLog()
    for part in range(3):
        await enqueue(log, 10, f"part{part}")
        await seal_all(log, signer)
    await enqueue(log, 3, "after")
    return log, await read_seals(log)


async def test_seals_follow_each_other_and_agree_with_what_they_cover(
    signer: Signer, trusted: TrustedKeys
) -> None:
    log, seals = await sealed_ledger(signer)
    assert [(each.seal.from_sequence, each.seal.to_sequence) for each in seals] == [
        (1, 10),
        (11, 21),
        (22, 32),
    ]
    assert seals[0].seal.previous_root == ""
    assert seals[1].seal.previous_root == seals[0].seal.merkle_root
    check, found = problems(seals, [(m.stream_sequence, m.data) for m in await stored(log)], trusted)
    assert not found
    assert (check.agreeing, check.sealed_through) == (3, 32)
    assert await newest_seal(log) == seals[-1]


async def test_an_idle_ledger_gets_no_further_seals(signer: Signer) -> None:
    log = MemoryLog()
    assert await seal_next(log, signer, by="ada", at=AT) is None
    await enqueue(log, 2)
    assert len(await seal_all(log, signer)) == 1
    assert await seal_all(log, signer) == []
    assert (await log.head()).last_sequence == 3


async def test_a_long_range_is_sealed_in_parts(signer: Signer, trusted: TrustedKeys) -> None:
    log = MemoryLog()
    await enqueue(log, 25)
    seals = await seal_all(log, signer, events_max=10)
    assert [each.seal.to_sequence - each.seal.from_sequence + 1 for each in seals] == [10, 10, 7]
    _, found = problems(seals, [(m.stream_sequence, m.data) for m in await stored(log)], trusted)
    assert not found


async def test_a_clock_that_was_set_back_or_far_ahead_changes_nothing(
    signer: Signer, trusted: TrustedKeys
) -> None:
    log = MemoryLog()
    found: list[Seal] = []
    for at in (AT, AT - timedelta(days=400), AT + timedelta(days=4_000), AT - timedelta(hours=1)):
        await enqueue(log, 2, prefix=f"job-{len(found)}")
        seal = await seal_next(log, signer, by="ada", at=at)
        assert seal is not None
        found.append(seal)
    assert [each.seal.at for each in found] != sorted(each.seal.at for each in found)
    assert await read_seals(log) == found
    _, wrong = problems(found, [(m.stream_sequence, m.data) for m in await stored(log)], trusted)
    assert not wrong


async def test_whoever_seals_the_same_range_second_is_refused(signer: Signer) -> None:
    log = MemoryLog()
    await enqueue(log, 5)

    class Slow(MemoryLog):
        """Lets another seal between reading and appending."""

        async def append(self, entries: Sequence[Entry]) -> int:
            if log is not self and (await newest_seal(log)) is None:
                await seal_next(log, signer, by="quick", at=AT)
            return await log.append(entries)

    slow = Slow()
    await enqueue_into(slow, log)
    with pytest.raises(WrongSequenceError):
        await seal_next(slow, signer, by="slow", at=AT)
    assert [each.seal.by for each in await read_seals(log)] == ["quick"]


async def enqueue_into(copy: MemoryLog, log: MemoryLog) -> None:
    for message in await stored(log):
        chain = f"{message.subject.rsplit('.', 2)[0]}.>"
        await MemoryLog.append(copy, [Entry(message.subject, message.data, chain, 0)])


@pytest.mark.parametrize("place", [1, 7, 10, 11, 21, 31, 32])
async def test_a_changed_event_is_found_in_its_range(
    signer: Signer, trusted: TrustedKeys, place: int
) -> None:
    log, seals = await sealed_ledger(signer)
    events = [
        (m.stream_sequence, m.data + b" " if m.stream_sequence == place else m.data)
        for m in await stored(log)
    ]
    check, found = problems(seals, events, trusted)
    (first, last) = next((a, b) for a, b in ((1, 10), (11, 21), (22, 32)) if a <= place <= b)
    assert len(found) == 1
    assert f"stream sequence {first} to {last} is not what it was" in found[0]
    assert check.agreeing == 2


@pytest.mark.parametrize("place", [1, 10, 15, 32])
async def test_a_missing_event_is_found(signer: Signer, trusted: TrustedKeys, place: int) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log) if m.stream_sequence != place]
    check, found = problems(seals, events, trusted)
    assert len(found) == 1
    assert "is not what it was" in found[0]
    assert check.agreeing == 2


async def test_two_swapped_events_are_found(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    data = [m.data for m in await stored(log)]
    data[3], data[4] = data[4], data[3]
    _, found = problems(seals, list(enumerate(data, start=1)), trusted)
    assert len(found) == 1


async def test_a_published_seal_finds_a_tail_that_was_cut_off(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    kept = [(m.stream_sequence, m.data) for m in await stored(log)][:20]
    _, found = problems(seals[-1:], kept, trusted, whole=False)
    assert found == [
        "the ledger ends at 20, and the seal over 22 to 32 goes to 32: its newest events were cut off"
    ]


async def test_a_ledger_made_anew_is_found_by_a_published_seal(signer: Signer, trusted: TrustedKeys) -> None:
    _, seals = await sealed_ledger(signer)
    other = MemoryLog()
    await enqueue(other, 40, "forged")
    await seal_all(other, signer)
    events = [(m.stream_sequence, m.data) for m in await stored(other)]
    assert not problems(await read_seals(other), events, trusted)[1]
    _, found = problems(seals[-1:], events, trusted, whole=False)
    assert len(found) == 1
    assert "22 to 32 is not what it was" in found[0]


async def test_a_check_may_begin_at_a_seal(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log)][21:]
    check, found = problems(seals, events, trusted, from_sequence=22)
    assert not found
    assert check.agreeing == 1
    # One that begins inside a range leaves it out, and compares the next.
    check, found = problems(seals, [(m, d) for m, d in events if m >= 25], trusted, from_sequence=25)
    assert not found
    assert check.agreeing == 0


async def test_only_trusted_keys_count(signer: Signer, tmp_path: Path) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log)]
    public, _ = make_keys(tmp_path / "other.pem")
    _, found = problems(seals, events, read_trusted([public]))
    assert len(found) == 3
    assert all("is not among the trusted ones" in each for each in found)


async def test_a_seal_that_was_altered_has_no_good_signature(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log)]
    for field, value in (("by", "eve"), ("at", AT + timedelta(seconds=1)), ("signature", "00" * 64)):
        altered = msgspec.structs.replace(seals[1].seal, **{field: value})
        _, found = problems([seals[0], with_seal(seals[1], altered), seals[2]], events, trusted)
        assert found == ["the signature of the seal over 11 to 21 is not that of its key"], field
    # Without keys the events are compared all the same.
    altered = msgspec.structs.replace(seals[1].seal, merkle_root="00" * 32)
    _, found = problems([seals[0], with_seal(seals[1], altered), seals[2]], events, None)
    assert len(found) == 2  # the root, and the next seal's word on it


def with_seal(published: Seal, seal: SealRecorded) -> Seal:
    return msgspec.structs.replace(published, seal=seal)


async def test_seals_that_do_not_follow_each_other_are_found(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log)]
    _, found = problems([seals[0], seals[2]], events, trusted)
    assert found == ["the seal over 22 to 32 does not begin where the seal over 1 to 10 ends"]
    assert not problems([seals[0], seals[2]], events, trusted, whole=False)[1]
    foreign = msgspec.structs.replace(seals[0], environment="staging")
    _, found = problems([foreign], events, None)
    assert "is of environment 'staging', another ledger" in found[0]


async def test_published_seals_are_read_back(signer: Signer, tmp_path: Path) -> None:
    _, seals = await sealed_ledger(signer)
    path = tmp_path / "seals.jsonl"
    path.write_text("".join(f"{each.line()}\n" for each in (seals[1], seals[0], seals[1])) + "\n")
    assert read_published(path) == seals[:2]
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="holds no seal"):
        read_published(path)
    path.write_text(f"{seals[0].line()}\nnot a seal\n")
    with pytest.raises(InvalidInputError, match=r"line 2 of .* is not a published seal"):
        read_published(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_published(tmp_path / "none")


async def test_a_published_file_shows_every_forgery_and_outlives_what_broke_off(
    signer: Signer, trusted: TrustedKeys, tmp_path: Path
) -> None:
    log, seals = await sealed_ledger(signer)
    events = [(m.stream_sequence, m.data) for m in await stored(log)]
    path = tmp_path / "seals.jsonl"
    # The ledger was made again, and sealed again up to the very same sequence.
    other = with_seal(seals[1], msgspec.structs.replace(seals[1].seal, merkle_root="00" * 32))
    for order in ((other, seals[1]), (seals[1], other)):
        path.write_text("".join(f"{each.line()}\n" for each in (seals[0], *order)))
        kept = read_published(path)
        assert len(kept) == 3
        assert any("overlap" in each for each in problems(kept, events, None, whole=False)[1])
    # More than a day of them, one a minute.
    path.write_text(f"{seals[0].line()}\n" * 3_000 + f"{seals[1].line()}\r\n")
    assert read_published(path) == seals[:2]
    # A full disk broke a line off, and it was written again.
    torn = f"{seals[0].line()}\n{seals[1].line()[:50]}"
    path.write_text(f"{torn}\n{seals[1].line()}\n")
    assert read_published(path) == seals[:2]
    path.write_text(torn)
    with pytest.raises(InvalidInputError, match="line 2"):
        read_published(path)
    assert read_published(path, begun=False) == seals[:1]
    assert read_published(tmp_path / "none", begun=False) == []
    # A time that cannot be told in UTC is one that nobody signed.
    odd = datetime.fromisoformat("0001-01-01T00:00:00+14:00")
    altered = with_seal(seals[0], msgspec.structs.replace(seals[0].seal, at=odd))
    assert "signature" in problems([altered], events, trusted)[1][0]


def test_a_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public, key_id = make_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public == tmp_path / "key.pem.pub"
    assert read_signer(path).key_id == key_id
    assert key_id in read_trusted([public])
    with pytest.raises(ConfigurationError, match="exists and is left as it is"):
        make_keys(path)
    with pytest.raises(ConfigurationError, match="name a file"):
        make_keys(Path())
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="can be read by others: run `chmod 600"):
        read_signer(path)


def test_what_is_no_key_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "none.pem"
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_signer(path)
    path.write_text("not a key")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="holds no private key"):
        read_signer(path)
    with pytest.raises(ConfigurationError, match="holds no public key"):
        read_trusted([path])


async def test_what_is_signed_is_written_line_by_line(signer: Signer) -> None:
    log = MemoryLog()
    await enqueue(log, 1)
    (made,) = await seal_all(log, signer)
    seal = made.seal
    assert sealing.signed_text(seal, "").decode() == (
        f"jobledger seal 1\n\n1\n1\n{seal.merkle_root}\n{seal.head_hash}\n\n"
        f"2026-01-02T00:00:00.000000+00:00\nada\n{seal.key}\n"
    )


async def test_a_check_of_the_ledger_compares_it_with_its_seals(signer: Signer, trusted: TrustedKeys) -> None:
    log, seals = await sealed_ledger(signer)
    witness = await seals_as_witness(log, trusted=trusted)
    assert witness is not None
    report = await verify(log, witnesses=[witness])
    assert report.sound
    assert (report.compared[0].what, report.compared[0].agrees) == ("seals", True)
    assert report.compared[0].sentence == "3 of 3 agree with the events, up to stream sequence 32"

    cut_off = MemoryLog()
    for message in (await stored(log))[:20]:
        await cut_off.append([Entry(message.subject, message.data, f"{message.subject}.>", 0)])
    published = SealWitness(seals[-1:], NAMES, trusted=trusted, published=True)
    report = await verify(cut_off, witnesses=[published])
    assert report.broken == {"seal": 1}
    assert "its newest events were cut off" in report.violations[0].sentence


async def test_a_ledger_without_seals_has_nothing_to_compare(trusted: TrustedKeys) -> None:
    log = MemoryLog()
    await enqueue(log, 2)
    assert await seals_as_witness(log) is None
    witness = await seals_as_witness(log, trusted=trusted)
    assert witness is not None
    report = await verify(log, witnesses=[witness])
    assert report.compared[0].sentence == "0 of 0 agree with the events"
    # Whoever named a key relies on seals: their absence is no proof of anything.
    assert report.broken == {"seal": 1}
    assert "its seals were removed" in report.violations[0].sentence
    part = await seals_as_witness(log, trusted=trusted, is_part=True)
    assert part is not None
    assert (await verify(log, witnesses=[part])).sound
    assert (await verify(MemoryLog(), witnesses=[await missing(trusted)])).sound


async def missing(trusted: TrustedKeys) -> SealWitness:
    witness = await seals_as_witness(MemoryLog(), trusted=trusted)
    assert witness is not None
    return witness


async def test_what_stands_among_the_seals_and_is_none_is_named(signer: Signer) -> None:
    log, _ = await sealed_ledger(signer)
    head = await log.head()
    last = await newest_seal(log)
    assert last is not None
    chain = REACTOR.chain(NAMES, "seals")
    await log.append([Entry(REACTOR.of_type(NAMES, "sealed", "seals"), b"{}", chain, last.stream_sequence)])
    witness = await seals_as_witness(log)
    assert witness is not None
    report = await verify(log, witnesses=[witness])
    assert report.broken == {"readable": 1}
    assert report.violations[0].stream_sequence == head.last_sequence + 1
    assert report.violations[0].job == "reactor seals"
    again = await seal_next(log, signer, by="w", at=datetime.now(UTC))
    assert again is not None
    before = await log.get(last.stream_sequence)
    assert before is not None
    assert again.seal.prev == before.hash  # what is no seal is no link of the chain
