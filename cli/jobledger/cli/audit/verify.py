"""`jobledger audit verify`: prove that the ledger is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from jobledger.admin.archived import payload_places
from jobledger.audit.archive.chain import Past, is_archive, read_past
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.export import ExportLog, verify_export
from jobledger.audit.seals.keys import read_signer
from jobledger.audit.verify import CheckOptions, Expectation, Report, Witness
from jobledger.audit.verify import verify as check
from jobledger.audit.verify.file import read_report
from jobledger.audit.verify.options import MEMORY_BYTES_MAX, OVERDUE_GRACE_S
from jobledger.audit.watch import record_verify
from jobledger.cli import options
from jobledger.cli.audit import options as audit
from jobledger.cli.audit.report_output import ReportPlaces, made_from_export, made_from_ledger, tell
from jobledger.cli.audit.seal_options import KeptSeals, SealsAsked, SinceSeal, TrustedKeyFiles, seals_asked
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import LedgerNotSoundError, UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.ledger import Ledger
from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.errors import CorruptLedgerError, NoDataFolderError, RefusedError
from jobledger.ledger.model.log import Log
from jobledger.projections import ProjectionError
from jobledger.projections.errors import ProjectionMissingError
from jobledger.projections.witness import FormerWitness, PositionWitness, RowsWitness

# `jobledger audit verify EXPORT`: check an export, without a server.


async def verify_offline(
    output: Output, path: Path, options: CheckOptions, before: Report | None, seals: SealsAsked
) -> tuple[Report, str]:
    """Check the export in a folder or of a manifest; return the findings and its environment.

    Raises: LedgerNotSoundError when not even its manifest can be read; else as `verify_export`.
    """
    try:
        export = ExportLog(path)
        manifest = export.manifest
        # A seal covers every event of its range, so no seal can prove a selection of events.
        found = seals.witnesses(export, manifest.first_sequence, None, before=before, is_part=True)
        witnesses = [each async for each in found] if manifest.complete or seals.kept else []
        with output.progress("checking the export") as progress:
            report = await verify_export(
                path, options=options, before=before, witnesses=witnesses, on_progress=progress
            )
            return report, manifest.environment
    except CorruptLedgerError as error:
        raise LedgerNotSoundError(f"the export is not sound: {error}") from error


_NOT_FOR_EXPORTS: Final = "about a ledger on a server: an export is checked as a whole, without one"


class _CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a check."""

    begin: int
    first: int | None  #: --from as it was given
    last: int | None
    before: Report | None
    known: str | None  #: the earlier report's words on the ledger, for the error if there is no ledger
    options: CheckOptions
    archives: tuple[Path, ...]
    with_projection: bool
    with_payloads: bool
    record: bool
    seals: SealsAsked
    kept: ReportPlaces


@command(AUDIT, "verify", takes=ROWS)
async def verify(
    cli: Cli,
    *,
    export: audit.ExportPath = None,
    first: audit.First = None,
    last: audit.Last = None,
    against: audit.Against = None,
    report_path: audit.KeptReport = None,
    sign: audit.Sign = None,
    archives: options.Archives = None,
    with_projection: audit.WithProjection = False,
    with_payloads: audit.WithPayloads = False,
    record: audit.Record = False,
    seal_keys: TrustedKeyFiles = None,
    seals: KeptSeals = None,
    since_seal: SinceSeal = False,
    grace_s: audit.TimerGrace = OVERDUE_GRACE_S,
    memory_mib: audit.Memory = MEMORY_BYTES_MAX >> 20,
) -> None:
    """Read every event and prove that the ledger is sound; exits with 4 and names the first violation if not."""
    kept = ReportPlaces(
        path=report_path, against=against, seals=seals, signer=None if sign is None else read_signer(sign)
    )
    trusted = seals_asked(
        seal_keys, seals, since=since_seal, has_range=first is not None or against is not None
    )
    before = read_report(against, trusted.trusted) if against is not None else None
    asked = _CheckOptions(
        begin=first if first is not None else 1 if before is None else before.from_sequence,
        first=first,
        last=last,
        before=before,
        known=None if before is None or against is None else _known(before, against),
        options=CheckOptions(
            overdue_grace_s=grace_s,
            memory_bytes_max=memory_mib << 20,
            signatures_checked=trusted.trusted is not None,
        ),
        archives=tuple(archives or ()),
        with_projection=with_projection,
        with_payloads=with_payloads,
        record=record,
        seals=trusted,
        kept=kept,
    )
    if export is not None:
        if first is not None or last is not None or archives or with_projection or since_seal or record:
            raise UsageError(
                f"--from, --to, --archive, --with-projection, --since-seal and --record are {_NOT_FOR_EXPORTS}"
            )
        found, environment = await verify_offline(cli.output, export, asked.options, before, asked.seals)
        made = made_from_export(export, environment, asked.seals, kept)
        tell(cli.output, msgspec.structs.replace(found, made=made), kept)
        return
    _check_range(asked.begin, last, before)
    if asked.with_projection and (first is not None or last is not None or since_seal):
        raise UsageError(
            "a projection can only be compared with the whole ledger: leave out --from, --to and --since-seal"
        )
    tell(cli.output, await _verify(cli, asked), kept)


def _known(before: Report, path: Path) -> str:
    return (
        f"{path} proved a ledger there, up to stream sequence {before.head_sequence:,}, and that ledger is gone: bring "
        "it back from a back-up of the server's store, or an export with `jobledger audit restore`"
    )


def _check_range(begin: int, last: int | None, before: Report | None) -> None:
    if last is not None and last < begin:
        raise UsageError(f"--to {last} comes before --from {begin}")
    if before is None:
        return
    if begin != before.from_sequence:
        raise UsageError(
            f"--from {begin}: the earlier report begins at {before.from_sequence}, so must this check"
        )
    if last is not None and last < before.head_sequence:
        raise UsageError(
            f"--to {last}: the earlier report goes up to {before.head_sequence}, so must this check"
        )


async def _verify(cli: Cli, asked: _CheckOptions) -> Report:
    async with cli.ledger(known=asked.known) as ledger:
        log: Log = ledger.log
        past = await read_past(log, asked.archives) if asked.archives else None
        if past is not None:
            log = past.log
        begin = await asked.seals.begin(log, asked.begin)
        if asked.last is not None and asked.last < begin:
            raise UsageError(f"--to {asked.last} comes before {begin}, where the newest seal begins")
        # Read this before the ledger's end, since the ledger may grow meanwhile.
        path, position = await _projection(cli, ledger, log, asked)
        reached = position.stream_sequence if position is not None else 0
        await _refuse_beyond_the_end(log, asked, max(asked.seals.kept_through(log), reached))
        witnesses: list[Witness] = []
        if past is not None:
            is_whole = is_archive(asked.archives)
            witnesses.append(ArchiveWitness(past, ledger.log, from_sequence=begin, is_archive=is_whole))
        witnesses += [
            each async for each in asked.seals.witnesses(log, begin, asked.last, before=asked.before)
        ]
        if position is not None:
            witnesses.append(position)
        if path is not None and (former := cli.former_ledger(path)) is not None:
            witnesses.append(FormerWitness(former))
        if asked.with_projection and path is not None:
            witnesses.append(RowsWitness(path, log))
        # The present time decides whether jobs at the ledger's end are overdue; a check that ends earlier has no such
        # time.
        expected = Expectation(now=ledger.clock.now() if asked.last is None else None)
        with cli.output.progress("checking the ledger") as progress:
            report = await check(
                log,
                from_sequence=begin,
                to_sequence=asked.last,
                options=asked.options,
                expected=expected,
                before=asked.before,
                witnesses=witnesses,
                payloads=payload_places(ledger, log) if asked.with_payloads else (),
                on_progress=progress,
            )
        if past is not None and not report.sound and is_archive(asked.archives):
            await _refuse_if_forgotten_since(ledger.log, past)
        if asked.record:
            await record_verify(ledger.log, report, ledger.stamp(operator()))
        made = await made_from_ledger(ledger, asked.seals, asked.kept)
        return msgspec.structs.replace(report, made=made)


async def _refuse_if_forgotten_since(log: Log, past: Past) -> None:
    """Refuse a verdict on exports that a keeper removed while they were read. Raises: RefusedError."""
    newest = await forgotten_past(log)
    if newest is not None and newest != past.forgotten:
        raise RefusedError(
            f"a keeper removed exports while this check read them ({newest.words}), so there is no verdict: run it again"
        )


async def _projection(
    cli: Cli, ledger: Ledger, log: Log, asked: _CheckOptions
) -> tuple[Path | None, PositionWitness | None]:
    """Return the projection's file and its position; go on without an unreadable file, unless it is needed."""
    path: Path | None = None
    try:
        path = await cli.rows(ledger).path()
        if asked.with_projection and not path.exists():
            raise ProjectionMissingError(path)
        return path, PositionWitness.beside(path, log)
    except (ProjectionError, NoDataFolderError, OSError) as error:
        if asked.with_projection and (path is None or isinstance(error, ProjectionMissingError)):
            raise
        cli.output.note(f"the ledger's end was not compared with the projection: {error}")
        return path, None


async def _refuse_beyond_the_end(log: Log, asked: _CheckOptions, known: int) -> None:
    """Refuse a range beyond the ledger's end: mistyped, unless a seal, report or projection reached it.

    Raises: UsageError.
    """
    head = (await log.head()).last_sequence
    known = max(known, head, asked.before.head_sequence if asked.before is not None else 0)
    for option, value, most in (("--from", asked.first, known + 1), ("--to", asked.last, known)):
        if value is not None and value > most:
            raise UsageError(f"{option} {value} lies beyond the ledger's end, which is {head}")
