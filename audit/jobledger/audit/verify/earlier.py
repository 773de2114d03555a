"""The part of a check that is about an earlier report: whether the ledger still begins as it was then. Pure."""

from __future__ import annotations

from typing import NamedTuple

from jobledger.audit.verify.report import CrossCheck, Intact, Report


class Comparison(NamedTuple):
    """The result of a comparison."""

    compared: CrossCheck
    violation: tuple[int, str] | None = None  #: stream sequence and sentence of a broken `history`


class Earlier:
    """An earlier report, held once to the events of a check that begins at `from_sequence`."""

    def __init__(self, report: Report, from_sequence: int, *, signatures_checked: bool) -> None:
        self._report = report
        self._from_sequence = from_sequence
        self._signed = signatures_checked if report.signature else None
        self._is_empty = report.head_sequence < report.from_sequence
        #: stream sequence of the event to call `compare` at; 0 for a report of no events, which any ledger continues
        self.ends = 0 if self._is_empty else report.head_sequence

    def compare(self, *, digest: str, head_hash: str) -> Comparison:
        """Compare with the events up to `ends`: their digest, and the hash of the last one."""
        report = self._report
        if report.from_sequence == self._from_sequence:
            what, began, now, then = "digest", report.from_sequence, digest, report.digest
        else:  # part of its range is archived: only the hash of the event at its end can be compared
            what, began, now, then = "hash", self.ends, head_hash, report.head_hash
        if now == then:
            return self._agrees()
        sentence = (
            f"stream sequence {began} to {self.ends} is not what it was "
            f"when the earlier report was made: {what} {now}, then {then}"
        )
        said = f"{what} {then} is not that of these events"
        return Comparison(self._said(said, agrees=False, through=self.ends), (self.ends, sentence))

    def _agrees(self) -> Comparison:
        first, last = self._from_sequence, self.ends
        intact: Intact = ()
        if self._report.from_sequence == first:
            sentence, intact = f"stream sequence {first:,} to {last:,} is what it was then", ((first, last),)
        else:
            sentence = f"the event at {last:,}, where it ends, is what it was then; it begins at "
            sentence += f"{self._report.from_sequence:,}, so the others were not compared"
        return Comparison(self._said(sentence, agrees=True, through=last, intact=intact))

    def missed(self, next_sequence: int) -> Comparison:
        """Say why no event was met at `ends`; `next_sequence` is the one after the last that was read."""
        if self._is_empty:
            return Comparison(
                self._said("it was not compared: it was made when there were no events", agrees=None)
            )
        if self.ends < self._from_sequence:
            begins = f"the ledger begins at {self._from_sequence:,} by now"
            return Comparison(
                self._said(f"the report up to {self.ends:,} was not compared: {begins}", agrees=None)
            )
        said = self._said(
            f"the event at {self.ends:,}, where it ends, was not found", agrees=False, through=self.ends
        )
        if next_sequence > self.ends:
            sentence = f"stream sequence {self.ends} cannot be read, where the earlier report ended"
            return Comparison(said, (self.ends, sentence))
        missing = (
            f"{next_sequence} is" if next_sequence == self.ends else f"{next_sequence} to {self.ends} are"
        )
        sentence = f"the ledger ends before {self.ends}, where the earlier report did: {missing} missing"
        return Comparison(said, (next_sequence, sentence))

    def _said(
        self, sentence: str, *, agrees: bool | None, through: int = 0, intact: Intact = ()
    ) -> CrossCheck:
        return CrossCheck(
            what="earlier report",
            sentence=sentence,
            agrees=agrees,
            through=through,
            intact=intact,
            signed=self._signed,
        )
