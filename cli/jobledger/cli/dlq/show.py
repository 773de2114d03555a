"""`jobledger dlq show`: one dead letter, and its most likely cause."""

from __future__ import annotations

from jobledger.admin.dead_letters import show_dead_letter
from jobledger.admin.objects.jobs import dead_letter_shown
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import DLQ
from jobledger.cli.jobs.view import show_job
from jobledger.cli.one_job import JobId, refuse_broken


@command(DLQ, "show", takes=ROWS)
async def show(cli: Cli, *, job_id: JobId, queue: options.Queue = None) -> None:
    """Show one dead letter: why it is one, its fingerprint, attempts, every event, and the newest traceback."""
    async with cli.ledger() as ledger:
        job, details, history, name, chain = await show_dead_letter(cli.rows(ledger), job_id, queue)
        now = ledger.clock.now()
    if cli.output.as_json:
        cli.output.object(dead_letter_shown(details, job, chain))
        refuse_broken(chain, f"job {job.id}")
        return
    show_job(cli.output, job, details, history, now=now, chain=chain)
    cli.output.say()
    cli.output.say(
        f"fingerprint {name}: `jobledger dlq list --fingerprint {name}` lists those of the same error"
    )
    refuse_broken(chain, f"job {job.id}")
