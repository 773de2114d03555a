"""A report of `jobledger audit verify` for a person, as JSON, and as a file that is dated and may be signed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from jobledger.audit.seals.keys import Signer
from jobledger.audit.verify.file import write_report
from jobledger.audit.verify.report import Evidence, Origin, Report
from jobledger.cli.audit.seal_options import SealsAsked
from jobledger.cli.errors import LedgerNotSoundError, UsageError
from jobledger.cli.output import Output
from jobledger.ledger import Ledger
from jobledger.ledger.files import open_file
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.addresses import shown
from jobledger.ledger.nats.streams import find_stream


class ReportPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a report, the evidence that the ledger was compared with, and the signer."""

    path: Path | None  #: file to write the report to
    against: Path | None  #: an earlier report, which the ledger must continue
    seals: Path | None  #: file of published seals to compare the ledger with
    signer: Signer | None  #: signer of the report

    def __post_init__(self) -> None:
        """Check the values as far as no ledger is needed. Raises: UsageError."""
        if self.signer is not None and self.path is None:
            raise UsageError("--sign signs the file of --report: name one")
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise UsageError(f"--report {self.path}: there is no folder {self.path.absolute().parent}")

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the files that the ledger was compared with, and their hashes."""
        found: list[Evidence] = []
        if self.against is not None:
            found.append(
                Evidence(what="earlier report", file=str(self.against), sha256=_sha256(self.against))
            )
        if self.seals is not None:
            found.append(Evidence(what="published seals", file=str(self.seals), sha256=_sha256(self.seals)))
        return tuple(found)


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.sha256(file.read()).hexdigest()  # the check has refused a file that is too large


async def made_from_ledger(ledger: Ledger, seals: SealsAsked, kept: ReportPlaces) -> Origin:
    """Return the origin of a report: its ledger, its time, and the keys and files used. Raises: UnreachableError."""
    stream = await find_stream(ledger.inbox, ledger.names.ledger_stream)
    return Origin(
        at=ledger.clock.now(),
        jobledger=VERSION,
        url=shown(ledger.config.url),
        environment=ledger.names.environment,
        stream_created_at="" if stream is None else stream.created,
        keys=seals.key_ids,
        evidence=kept.evidence(),
    )


def made_from_export(folder: Path, environment: str, seals: SealsAsked, kept: ReportPlaces) -> Origin:
    """Return the origin of a report: its export, its time, and the keys and files used."""
    return Origin(
        at=SYSTEM_CLOCK.now(),
        jobledger=VERSION,
        export=str(folder),
        environment=environment,
        keys=seals.key_ids,
        evidence=kept.evidence(),
    )


def tell(output: Output, report: Report, kept: ReportPlaces) -> None:
    """Print a report, and keep it in a file.

    Raises: LedgerNotSoundError, naming the first violation.
    """
    if output.as_json:
        output.object(report)
    else:
        _show_report(output, report)
    if kept.path is not None:
        _keep(output, report, kept.path, kept)
    if not report.sound:
        raise LedgerNotSoundError(_first_violation(report))


def _show_report(output: Output, report: Report) -> None:
    verdict, *rest = report.text().splitlines()
    output.say(verdict, style="bold green" if report.sound else "bold red")
    for line in rest:
        output.say(line)
    # Show hash and digest in full, so that a person can write them down and compare them.
    output.facts(
        [
            ("head", f"{report.head_sequence:,}" if report.events else "none: no event was there to check"),
            ("hash", report.head_hash or None),
            ("digest", report.digest),
            ("times", report.times.text() or None),
        ]
    )


def _keep(output: Output, report: Report, path: Path, kept: ReportPlaces) -> None:
    """Write the report; one with violations never replaces the earlier report that the ledger was compared with."""
    if not report.sound and kept.against is not None and path.resolve() == kept.against.resolve():
        output.note(f"{path} was not replaced: the next check must not expect what is wrong now")
        return
    try:
        write_report(report, path, kept.signer)
    except OSError as error:
        if report.sound:
            raise
        output.note(f"{path} cannot be written: {error.strerror}")  # only a note: violations matter more
    else:
        signed = "" if kept.signer is None else f", signed by the key {kept.signer.key_id[:16]}"
        output.note(f"the report is kept in {path}{signed}")


def _first_violation(report: Report) -> str:
    first = report.violations[0]
    about = f" of {first.job}" if first.job else ""
    place = f" at stream sequence {first.stream_sequence}" if first.stream_sequence else ""
    more = report.violations_count - 1
    rest = f" (and {more:,} more)" if more else ""
    return (
        f"the {report.what} is not sound: rule `{first.rule}` is broken{place}{about}: {first.sentence}{rest}"
    )
