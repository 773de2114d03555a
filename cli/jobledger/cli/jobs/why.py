"""`jobledger jobs show --why`: what a job waits for, since when, and which event says so."""

from __future__ import annotations

from jobledger.admin import acts
from jobledger.admin.objects.jobs import why_shown
from jobledger.admin.past import AsOf
from jobledger.audit.why import Why
from jobledger.cli.command import Cli
from jobledger.cli.events.lines import show_event
from jobledger.cli.text import colored, moment


async def show_why(cli: Cli, job_id: str, queue: str | None, past: AsOf | None) -> None:
    """Print what a job waits for, and the command that would change something. Raises: as `acts.why`."""
    output = cli.output
    async with cli.ledger() as ledger:
        job, found, facts, proof = await acts.why(cli.rows(ledger), job_id, queue, past=past)
    if output.as_json:
        output.object(why_shown(job, found))
        return
    output.say(f"job {job.id}", style="bold")
    output.facts(
        [
            ("status", colored(found.status)),
            ("why", found.sentence),
            ("since", moment(found.since, facts.now)),
            ("unique", found.unique or None),
            *(("try", hint) for hint in _hints(found)),
        ]
    )
    output.say()
    output.say("the event that says so" if len(proof) < 2 else "the events that say so", style="bold")  # noqa: PLR2004
    for stored in proof:
        show_event(output, stored)


def _hints(found: Why) -> list[str]:
    """Return what a person can type: the best first, then what ends each of the other waits of a run."""
    hints = (found.hint, *(wait.hint for wait in found.waits)) if found.hint else ()
    return list(dict.fromkeys(hints))
