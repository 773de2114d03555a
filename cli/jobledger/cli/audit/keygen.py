"""`jobledger audit keygen`: the keys that sign seals and prove them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobledger.audit.seals.keys import make_keys
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import AUDIT


@command(AUDIT, "keygen", takes=OFFLINE)
def keygen(
    cli: Cli,
    *,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write the private key to.")],
) -> None:
    """Make a key pair for seals: FILE, which only you can read, and FILE.pub for those who verify."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.absolute().parent}")
    public, key_id = make_keys(path)
    if cli.output.as_json:
        cli.output.object({"private": str(path), "public": str(public), "key": key_id})
    else:
        cli.output.facts(
            [("signs", f"{path}  keep it secret"), ("verifies", f"{public}  hand it out"), ("key", key_id)]
        )
