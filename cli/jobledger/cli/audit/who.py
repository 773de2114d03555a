"""`jobledger audit who`: list acts of people."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from jobledger.admin.operators import operator_acts
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import AUDIT
from jobledger.cli.one_job import refuse_broken
from jobledger.cli.output import Output
from jobledger.cli.text import colored, plain
from jobledger.cli.times import time_of
from jobledger.projections import ActFilter
from jobledger.projections.tables.acts import ActGroup

_LIMIT_MAX: Final = 100_000
_ACT_WIDTH: Final = len("requeue  ")


@command(AUDIT, "who", takes=ROWS)
async def who(
    cli: Cli,
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Only actions of this operator or program.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only since this time (UTC).")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_LIMIT_MAX, metavar="N", help="At most this many.")
    ] = 50,
    each: Annotated[
        bool,
        typer.Option(
            "--each",
            metavar="",
            help="Job by job, also what was done at once to many jobs; --json always does.",
        ),
    ] = False,
    archives: options.Archives = None,
) -> None:
    """List what operators did, the newest first: to jobs and queues, and notes that they left, with actor and reason."""
    output, chosen = cli.output, ActFilter(by=by, since=time_of("--since", since))
    async with cli.ledger() as ledger:
        newest, shown, count, gap, chains, own_times = await operator_acts(
            cli.rows(ledger), chosen, limit=limit, archives=archives or (), each=each or output.as_json
        )
    for group in newest:
        act = group.newest
        if output.as_json:
            found = chains.broken.get((act.queue, act.job))
            times = "events" if act.stream_sequence in own_times else "server"
            broken_at = found.broken_at if found else None
            output.object({**msgspec.structs.asdict(act), "times": times, "chain_broken_at": broken_at})
        else:
            _show_act(output, group)
    if not count:
        begins = "" if gap is None else f" since stream sequence {gap.first_sequence}"
        output.say(
            f"no operator acted{begins}"
            if chosen.by is None and chosen.since is None
            else "no operator actions match"
        )
    elif count > shown:
        output.note(f"the newest {shown:,} of {count:,} are shown; --limit shows more")
    if any(group.count > 1 for group in newest):
        output.note("what was done to many jobs at once is one line; --each shows it job by job")
    if gap is not None:
        output.note(gap.sentence("`jobledger audit who --archive DIR`"))
    if any(group.newest.stream_sequence in own_times for group in newest):
        output.say("times are the events' own where the server's differ, as after a restore", style="dim")
    if newest:
        for line in chains.texts():
            output.say(line, style="bold red" if chains.broken else "dim")
    for (queue, job), found in chains.broken.items():
        refuse_broken(found, f"job {queue}/{job}")


def _show_act(output: Output, group: ActGroup) -> None:
    act = group.newest
    head = Text(f"{act.at[:10]} {act.at[11:19]} ", style="dim")
    head.append_text(colored(act.act))
    head.pad_right(max(1, _ACT_WIDTH - len(act.act)))
    edited = ", with a new input" if act.new_input else ""
    reason = f": {act.reason}" if act.reason else ""
    of = f"{act.queue}/{act.job} " if act.job else f"queue {act.queue} " if act.queue else ""
    if group.count > 1:
        more = "" if group.is_whole else " or more"
        of = f"{group.count:,}{more} jobs of {f'queue {group.queue}' if group.queue else 'several queues'} "
    output.hanging(head, Text(plain(f"{of}by {act.by}{edited}{reason}")))
