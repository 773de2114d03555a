"""`jobledger audit`: its commands, each in a module of its own."""

from __future__ import annotations

import typer

from jobledger.cli.audit import archive as audit_archive
from jobledger.cli.audit import diff as audit_diff
from jobledger.cli.audit import export as audit_export
from jobledger.cli.audit import seals as audit_seals
from jobledger.cli.audit import trail as audit_trail
from jobledger.cli.audit import verify as audit_verify
from jobledger.cli.audit import who as audit_who
from jobledger.cli.projection import replay

app = typer.Typer(
    help="Prove the ledger sound, show the trails of its jobs, seal, export and archive it.",
    no_args_is_help=True,
)
app.command("verify")(audit_verify.verify)
app.command("trail")(audit_trail.trail)
app.command("who")(audit_who.who)
app.command("keygen")(audit_seals.keygen)
app.command("seal")(audit_seals.seal)
app.command("seals")(audit_seals.seals)
app.command("export")(audit_export.export)
app.command("restore")(replay.restore)
app.command("diff")(audit_diff.diff)
app.command("archive")(audit_archive.archive)
