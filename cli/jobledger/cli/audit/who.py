"""`jobledger audit who`: list what people did."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from jobledger.cli import options
from jobledger.cli.archived import missing, with_archive
from jobledger.cli.audit_options import Archives
from jobledger.cli.events.events import parse_time
from jobledger.cli.output import Output
from jobledger.cli.session import Target, caught_up, opened, projection_path, run
from jobledger.cli.text import colored, plain
from jobledger.ledger import Ledger
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.log import Log
from jobledger.projections import ActFilter, ActRow, EventGapError, Projector, Store

_LIMIT_MAX: Final = 100_000
_ACT_WIDTH: Final = len("requeue  ")


def who(
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Only what this operator or program did.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only since this time (UTC).")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_LIMIT_MAX, metavar="N", help="At most this many.")
    ] = 50,
    archives: Archives = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List what people did to jobs, the newest first: cancel, retry, requeue and discard, with actor and reason."""
    begin = parse_time("--since", since) if since is not None else None
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    chosen = ActFilter(by=by, since=begin)
    run(lambda: _who(output, target, projection, chosen, limit, archives or ()))


async def _who(  # noqa: PLR0917 - what the command was told
    output: Output,
    target: Target,
    projection: Path | None,
    chosen: ActFilter,
    limit: int,
    archives: Sequence[Path],
) -> None:
    async with opened(target) as ledger:
        log = await with_archive(ledger.log, archives)
        gap = await missing(log, archives, since=chosen.since)
        # The rows may go further back than what is read: then the answer would depend on who made them, and when.
        chosen = msgspec.structs.replace(chosen, from_sequence=(await log.head()).first_sequence)
        with tempfile.TemporaryDirectory(prefix="jobledger-") as folder:
            path = await _projected(output, ledger, log, projection, Path(folder), chosen.from_sequence)
            with Store.open(path) as store, store.one_moment():
                newest, count = store.acts(limit, chosen=chosen), store.act_count(chosen)
    for act in newest:
        if output.as_json:
            output.object(msgspec.structs.asdict(act))
        else:
            _show_act(output, act)
    if not count:
        begins = "" if gap is None else f" since stream sequence {gap.first_sequence}"
        is_all = chosen.by is None and chosen.since is None
        output.say(f"nobody did anything to a job{begins}" if is_all else "no acts fit")
    elif count > limit:
        output.note(f"the newest {limit:,} of {count:,} are shown; --limit shows more")
    if gap is not None:
        output.note(gap.sentence("jobledger audit who"))


async def _projected(  # noqa: PLR0917 - what the command was told
    output: Output, ledger: Ledger, log: Log, projection: Path | None, folder: Path, first_sequence: int
) -> Path:
    """Return a file brought up to the ledger; one in `folder` where an archive is in front, or the beginning is lost."""
    if log is ledger.log:
        with contextlib.suppress(EventGapError):
            path = await projection_path(ledger, projection)
            _ = await caught_up(ledger, path, output)
            return path
    path = folder / "acts.db"
    with (
        Projector(log, path, begins_at=first_sequence) as projector,
        output.progress("reading the ledger") as progress,
    ):
        _ = await projector.catch_up(progress=progress)
    return path


def _show_act(output: Output, act: ActRow) -> None:
    head = Text(f"{act.at[:10]} {act.at[11:19]} ", style="dim")
    head.append_text(colored(act.act))
    head.pad_right(max(0, _ACT_WIDTH - len(act.act)))
    edited = ", with a new input" if act.new_input else ""
    reason = f": {act.reason}" if act.reason else ""
    output.hanging(head, Text(plain(f"{act.queue}/{act.job} by {act.by}{edited}{reason}")))
