"""`jobledger audit seals`: list the seals."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from jobledger.audit.seals.keys import TrustedKeys, read_trusted
from jobledger.audit.seals.seals import Seal, read_seals, signed_text
from jobledger.cli.audit.seal_options import TrustedKeyFiles
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import AUDIT

_KEY_SHOWN: Final = 12


@command(AUDIT, "seals")
async def seals(
    cli: Cli,
    *,
    keys: TrustedKeyFiles = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the newest N. (default: all)")
    ] = None,
) -> None:
    """List the seals in the ledger, the oldest first; a line of --json is a published seal."""
    trusted, output = read_trusted(keys) if keys else None, cli.output
    async with cli.ledger() as ledger:
        found = await read_seals(ledger.log)
    chosen = found[-limit:] if limit is not None else found
    if output.as_json:
        for each in chosen:
            output.raw(each.line())
    elif not found:
        output.say("no seals; make the first with `jobledger audit seal --key FILE`")
    else:
        output.table(
            ("at (UTC)!", "from>", "to>", "key", "signature", "root"),
            [_row(each, trusted) for each in chosen],
        )


def _row(each: Seal, trusted: TrustedKeys | None) -> tuple[str, ...]:
    seal = each.seal
    return (
        f"{seal.at:%Y-%m-%d %H:%M:%S}",
        f"{seal.from_sequence:,}",
        f"{seal.to_sequence:,}",
        seal.key[:_KEY_SHOWN],
        _verdict(each, trusted),
        seal.merkle_root[:_KEY_SHOWN],
    )


def _verdict(each: Seal, trusted: TrustedKeys | None) -> str:
    seal = each.seal
    if trusted is None:
        return "unchecked"
    if seal.key not in trusted:
        return "unknown key"
    return "good" if trusted.signed(seal.key, seal.signature, signed_text(seal, each.environment)) else "BAD"
