"""`jobledger audit trail`: what happened to one job, as `jobs show --trail` has it, or to another thing with a chain."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from jobledger.admin.find import Chain, find_chain
from jobledger.admin.objects.jobs import chain_shown
from jobledger.audit.clocks import clocks_of
from jobledger.audit.trail import lines_of_chain
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.jobs.trail import show_check, show_lines, trail_section
from jobledger.cli.one_job import refuse_broken, show_section
from jobledger.cli.output import Output
from jobledger.cli.past import asked

TrailOf = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The job's id, or a prefix that only one job has; or lock/SCOPE/ID or reactor/NAME for one of those.",
    ),
]


_COMMAND: Final = "jobledger audit trail"


@command(AUDIT, "trail", takes=ROWS)
async def trail(
    cli: Cli,
    *,
    job_id: TrailOf,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: options.Archives = None,
) -> None:
    """Show what happened to one job: who did what and when, what it waited for and how long, which error."""
    past = asked(at, sequence)
    if "/" in job_id:
        if past is not None:
            raise UsageError("--at and --sequence are about a job: leave them out")
        async with cli.ledger() as ledger:
            found_chain = await find_chain(ledger, job_id, archives or ())
        _show_chain(cli.output, found_chain)
        refuse_broken(found_chain.check, found_chain.label)
        return
    await show_section(cli, _COMMAND, trail_section, job_id=job_id, queue=queue, past=past, archives=archives)


def _show_chain(output: Output, chain: Chain) -> None:
    clocks = clocks_of(chain.messages)
    lines = lines_of_chain(chain.messages, clocks)
    if output.as_json:
        output.object(chain_shown(chain.label, lines, clocks, chain.check))
        return
    output.say(chain.label, style="bold")
    output.say(clocks.text(), style="dim")
    show_lines(output, lines)
    output.say()
    show_check(output, chain.check)
