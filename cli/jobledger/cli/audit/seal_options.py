"""Options of `jobledger audit verify` on seals: the keys that count, the kept seals, and where to begin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from jobledger.audit.seals.keys import read_trusted
from jobledger.audit.seals.seals import Seal, newest_of, newest_seal, read_published
from jobledger.audit.verify.report import Report
from jobledger.audit.verify.seals import SealWitness, seals_as_witness, without_cut_off
from jobledger.cli.errors import UsageError
from jobledger.ledger.model.log import Log

_SEALS = "Seals"
TrustedKeyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--seal-key",
        envvar="JOBLEDGER_SEAL_KEYS",
        metavar="FILE",
        help="Public key to trust; repeat it for several. (default: signatures are not checked)",
        rich_help_panel=_SEALS,
    ),
]
KeptSeals = Annotated[
    Path | None,
    typer.Option(
        "--seal",
        metavar="FILE",
        help="File of published seals, one a line, that the ledger must agree with.",
        rich_help_panel=_SEALS,
    ),
]
SinceSeal = Annotated[
    bool,
    typer.Option(
        "--since-seal",
        metavar="",
        help="Begin at the newest seal of --seal, or without --seal at the newest in the ledger.",
        rich_help_panel=_SEALS,
    ),
]


class SealsAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a check on seals."""

    kept: tuple[Seal, ...]
    since: bool
    trusted: Any = None  #: TrustedKeys | None; Any, since an extra defines that type

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys whose signatures count."""
        return () if self.trusted is None else tuple(self.trusted.key_ids)

    async def begin(self, log: Log, begin: int) -> int:
        """Return the stream sequence that the check begins at.

        Raises: UsageError without a seal to begin at, and the errors of reading the newest one.
        """
        if not self.since:
            return begin
        kept = (await without_cut_off(log, self._kept_of(log))).left
        newest = newest_of(kept) if kept else await newest_seal(log)
        if newest is None:
            raise UsageError(
                "--since-seal: the ledger has no seal; make one with `jobledger audit seal --key FILE`"
            )
        # The range of the newest seal may be archived by now; only a check with the archive covers that part.
        return max(newest.seal.from_sequence, (await log.head()).first_sequence)

    def kept_through(self, log: Log) -> int:
        """Return the last stream sequence that kept seals of this ledger cover, 0 without any."""
        environment = log.names.environment
        ours = (each.seal.to_sequence for each in self.kept if each.environment == environment)
        return max(ours, default=0)

    async def witnesses(
        self,
        log: Log,
        begin: int,
        last: int | None,
        *,
        before: Report | None = None,
        is_part: bool = False,
    ) -> AsyncGenerator[SealWitness, None]:
        """Yield the ledger's own seals and the published ones; archived seals need a check with the archive.

        Seals of events after `last` are left out. `is_part`: as for `audit.verify`.
        """
        begin = max(begin, (await log.head()).first_sequence)
        own = await seals_as_witness(
            log,
            from_sequence=begin,
            through=last,
            trusted=self.trusted,
            is_part=is_part,
            # The key was given only for the signed report. If that report had counted seals, none of them could be
            # missing now.
            may_lack=before is not None and bool(before.signature) and not before.seals,
        )
        if own is not None:
            yield own
        kept = self._kept_of(log)
        if kept:
            left, notices = await without_cut_off(log, kept)
            read = [each for each in left if last is None or each.seal.to_sequence <= last]
            yield SealWitness(
                read,
                log.names,
                from_sequence=begin,
                trusted=self.trusted,
                published=True,
                own=own,
                later=len(left) - len(read),
                cut=notices,
            )

    def _kept_of(self, log: Log) -> list[Seal]:
        """Return the kept seals of this ledger; a file may have those of several environments.

        Raises: UsageError if all are of others.
        """
        environment = log.names.environment
        found = [each for each in self.kept if each.environment == environment]
        if self.kept and not found:
            others = ", ".join(sorted({repr(each.environment) for each in self.kept}))
            raise UsageError(
                f"--seal: it holds seals of the environment {others} alone, and this ledger is {environment!r}: "
                "name the file of this one, or the right --environment"
            )
        return found


def seals_asked(
    keys: Sequence[Path] | None, kept: Path | None, *, since: bool, has_range: bool
) -> SealsAsked:
    """Read the keys and files that the options name.

    Raises: UsageError, ConfigurationError, InvalidInputError.
    """
    if since and has_range:
        raise UsageError("--since-seal says where to begin: leave out --from and --against")
    return SealsAsked(
        kept=tuple(read_published(kept)) if kept is not None else (),
        since=since,
        trusted=read_trusted(keys) if keys else None,
    )
