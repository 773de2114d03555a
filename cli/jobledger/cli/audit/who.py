"""`jobledger audit who`: list what people did."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from jobledger.audit.acts import Act, acts
from jobledger.cli import options
from jobledger.cli.archived import missing, with_archive
from jobledger.cli.audit_options import Archives
from jobledger.cli.events.events import parse_time
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import colored, plain
from jobledger.ledger.config import DEFAULT_URL

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
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List what people did to jobs, the newest first: cancel, retry, requeue and discard, with actor and reason."""
    begin = parse_time("--since", since) if since is not None else None
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _who(output, target, by, begin, limit, archives or ()))


async def _who(  # noqa: PLR0917 - what the command was told
    output: Output,
    target: Target,
    by: str | None,
    since: datetime | None,
    limit: int,
    archives: Sequence[Path],
) -> None:
    newest: deque[Act] = deque(maxlen=limit)
    count = 0
    async with opened(target) as ledger:
        log = await with_archive(ledger.log, archives)
        gap = await missing(log, archives, since=since)
        with output.progress("reading the ledger") as progress:
            found = acts(log, by=by, since=since, on_progress=progress)
            async with contextlib.aclosing(found):
                async for act in found:
                    newest.append(act)
                    count += 1
    for act in reversed(newest):
        if output.as_json:
            output.object(msgspec.structs.asdict(act))
        else:
            _show_act(output, act)
    if not count:
        begins = "" if gap is None else f" since stream sequence {gap.first_sequence}"
        output.say(f"nobody did anything to a job{begins}" if by is None and since is None else "no acts fit")
    elif count > limit:
        output.note(f"the newest {limit:,} of {count:,} are shown; --limit shows more")
    if gap is not None:
        output.note(gap.sentence("jobledger audit who"))


def _show_act(output: Output, act: Act) -> None:
    head = Text(f"{act.at:%Y-%m-%d %H:%M:%S} ", style="dim")
    head.append_text(colored(act.act))
    head.pad_right(max(0, _ACT_WIDTH - len(act.act)))
    edited = ", with a new input" if act.new_input else ""
    reason = f": {act.reason}" if act.reason else ""
    output.hanging(head, Text(plain(f"{act.queue}/{act.job} by {act.by}{edited}{reason}")))
