"""The part of a check that is about seals: what was sealed is compared in the same pass as everything else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobledger.audit.seals.keys import TrustedKeys
from jobledger.audit.seals.seals import Seal, SealCheck, each_seal
from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.report import CrossCheck
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.reactor import REACTOR, RESTORE, Restored
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.times import as_utc, shown_time

_MISSING: Final = "the ledger has no seal, and a key was named whose seals count: it was never sealed, or its seals were removed"


class SealWitness:
    """A witness of `audit.verify`: the ledger's own seals, or published ones that it must still agree with."""

    def __init__(
        self,
        seals: Sequence[Seal],
        names: Names,
        *,
        from_sequence: int = 1,
        trusted: TrustedKeys | None = None,
        published: bool = False,
        own: SealWitness | None = None,
        later: int = 0,
        problem: CorruptLedgerError | None = None,
        is_missing: bool = False,
        cut: Sequence[str] = (),
    ) -> None:
        """Begin; `own` is the witness of the ledger's own seals, which published ones name.

        `own` has to finish before this one. `later` seals end after what is read. `problem` is what kept the seals
        from being read to the end; `is_missing`: there should be some. `cut`: of further seals, why they are not
        compared, a sentence for each restore.
        """
        reached = (each.seal.to_sequence for each in seals if each.seal.from_sequence >= from_sequence)
        self._through = max(reached, default=0) if published else 0
        self._own = own
        self._later = later
        self._cut = cut
        self._published = published
        self._check = SealCheck(
            seals, names, from_sequence=from_sequence, trusted=trusted, whole=not published
        )
        self._count = len(seals)
        self._what = "published seals" if published else "seals"
        self._signed = trusted is not None
        self._found = list(self._check.problems())
        if problem is not None:
            self._found.append((problem.stream_sequence, str(problem)))
        if is_missing:
            self._found.append((0, _MISSING))

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        for message in batch:
            self._found.extend(self._check.feed(message.stream_sequence, message.sha256))

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        self._found.extend(self._check.finish(checker.next_sequence - 1))
        for stream_sequence, sentence in self._found:
            checker.note("", "seal", sentence, stream_sequence=stream_sequence)
        agrees = not self._found if self._found or self._check.agreeing else None
        checker.compared(
            CrossCheck(
                what=self._what,
                sentence=self._sentence(),
                agrees=agrees,
                through=self._through,
                intact=tuple(self._intact()) if agrees else (),
                signed=self._signed if self._count else None,
            )
        )

    def _intact(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges that cannot have been rewritten: those of published seals, and of the seals that they name.

        The ledger's own seals prove it only if signed: otherwise an attacker who rewrites the events can rewrite the
        seals, too.
        """
        if not self._published:
            yield from self._check.spans() if self._signed else ()
            return
        own = {} if self._own is None else self._own.agreeing
        for each in self._check.agreed:
            seal = each.seal
            yield seal.from_sequence, seal.to_sequence
            while (before := own.pop((seal.from_sequence - 1, seal.previous_root), None)) is not None:
                seal = before.seal
                yield seal.from_sequence, seal.to_sequence

    @property
    def agreeing(self) -> dict[tuple[int, str], Seal]:
        """The seals that the events agree with, by where they end and their Merkle root: so the next one names them."""
        return {(each.seal.to_sequence, each.seal.merkle_root): each for each in self._check.agreed}

    def _sentence(self) -> str:
        check = self._check
        agreeing = f"{check.agreeing:,} of {self._count - check.before:,} agree with the events"
        through = f", up to stream sequence {check.sealed_through:,}" if check.agreeing else ""
        signed = "" if self._signed else "; no signature was checked, name the public key with --seal-key"
        before = f"; {check.before:,} begin before what was read" if check.before else ""
        later = f"; {self._later:,} end after what was read" if self._later else ""
        cut = "".join(f"; notice: {each}" for each in self._cut)
        return agreeing + through + before + later + cut + signed


class CutSeals(NamedTuple):
    """Published seals, with and without those over events that a restore cut off, as the ledger records it."""

    left: list[Seal]
    notices: list[str]  #: a sentence for each restore that cut some off


async def without_cut_off(log: Log, seals: Sequence[Seal]) -> CutSeals:
    """Leave out seals that were made before a restore, and are over events that it did not bring back.

    Raises: CorruptLedgerError, UnreachableError.
    """
    left, notices = list(seals), list[str]()
    batches = log.read_messages(subject=REACTOR.of_type(log.names, "restored", RESTORE))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                event = REACTOR.decode(message)
                assert isinstance(event, Restored), "its subject names the type"
                cut = [each for each in left if _is_cut(each, event)]
                left = [each for each in left if each not in cut]
                if cut:
                    notices.append(_notice(len(cut), event, message.stream_sequence))
    return CutSeals(left, notices)


def _is_cut(each: Seal, event: Restored) -> bool:
    return each.seal.to_sequence > event.through_sequence and as_utc(each.seal.at) <= as_utc(event.at)


def _notice(count: int, event: Restored, stream_sequence: int) -> str:
    seals = "1 goes" if count == 1 else f"{count:,} go"
    was = "was" if count == 1 else "were"
    restored = f"the restore of {shown_time(event.at)} by {event.by}, as recorded at {stream_sequence:,}"
    return f"{seals} beyond stream sequence {event.through_sequence:,} and {was} cut off by {restored}"


async def seals_as_witness(
    log: Log,
    *,
    from_sequence: int = 1,
    through: int | None = None,
    trusted: TrustedKeys | None = None,
    is_part: bool = False,
    may_lack: bool = False,
) -> SealWitness | None:
    """Return the seals in a ledger as a witness; None if it has none, and no key suggests that it should.

    `is_part`: the log is a part of a ledger by intent, which may lie between two seals. `may_lack`: the keys need not
    be those of seals.

    Raises: UnreachableError.
    """
    seals: list[Seal] = []
    problem, has_any = None, False
    try:
        async for seal in each_seal(log):
            has_any = True
            if through is None or seal.stream_sequence <= through:
                seals.append(seal)  # a seal that was read before an error counts
    except CorruptLedgerError as error:
        problem = error
    if not has_any and problem is None and (trusted is None or may_lack):
        return None
    if not seals and problem is None and trusted is None:
        return None
    is_missing = not (has_any or is_part or problem) and (await log.head()).last_sequence > 0
    return SealWitness(
        seals,
        log.names,
        from_sequence=from_sequence,
        trusted=trusted,
        problem=problem,
        is_missing=is_missing,
    )
