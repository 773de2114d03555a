"""`jobledger jobs show`: one job, read from its chain and so never stale, now or as of a past moment; or its tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.archived import archived_payloads
from jobledger.admin.objects.jobs import JobShown, checked
from jobledger.admin.past import AsOf, events_until, moment_words
from jobledger.admin.runs import run_tree
from jobledger.admin.views import details_as
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.jobs.tree import show_tree
from jobledger.cli.jobs.view import show_job
from jobledger.cli.one_job import JobId, found_history, moment_of_found, newest, refuse_broken
from jobledger.cli.past import asked, rows_begin, viewed
from jobledger.ledger.model.chain import fold

_COMMAND: Final = "jobledger jobs show"
_Tree = Annotated[
    bool, typer.Option("--tree", metavar="", help="Show the steps of a run, and all the jobs below it.")
]


@command(JOBS, "show", takes=ROWS)
async def show(
    cli: Cli,
    *,
    job_id: JobId,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: options.Archives = None,
    tree: _Tree = False,
) -> None:
    """Show one job with its attempts and every event, read from its chain and so never stale."""
    past, output = asked(at, sequence), cli.output
    if tree:
        await _show_tree(cli, job_id, queue, past, archives)
        return
    async with found_history(cli, job_id, queue, archives, _COMMAND) as found:
        then = await moment_of_found(found, past, job_id, _COMMAND) if past is not None else None
        events = newest(found.history if then is None else events_until(found.history, then), output)
        job = fold(events).job
        assert job is not None, "a history is not empty"
        archived = archived_payloads(found.log)
        more: dict[str, Any] = {"as_of": then or msgspec.UNSET, "chain": checked(found.chain)}
        shown = await details_as(JobShown, found.ledger, job, events, archived, **more)
        now = found.ledger.clock.now()
    if then is not None:
        output.say(moment_words(then), style="dim")
        now = then.at or now
    if output.as_json:
        output.object(shown)
    else:
        show_job(output, job, shown, events, now=now, chain=found.chain)
    if found.missing:
        output.note(found.missing)
    refuse_broken(found.chain, f"job {job.id}")


async def _show_tree(
    cli: Cli, job_id: str, queue: str | None, past: AsOf | None, archives: list[Path] | None
) -> None:
    if archives:
        raise UsageError("--tree shows what the ledger holds: leave out --archive")
    async with viewed(cli, past) as view:
        tree = run_tree(view.store, job_id, queue)
    if cli.output.as_json:
        cli.output.object({**msgspec.structs.asdict(tree), **rows_begin(view)})
    else:
        show_tree(cli.output, tree, view.now)
