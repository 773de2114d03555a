"""`jobledger webhooks test` and `redeliver`: test a receiver, and send events again."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast, get_args

import msgspec
import typer

from jobledger.admin.hooks.webhooks import (
    RedeliveryResult,
    redeliver_events,
    try_webhook,
)
from jobledger.cli.bulk import Plan, Yes, ask
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import DONE, FAILED, UsageError
from jobledger.cli.groups import WEBHOOKS
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.cli.text import plain, shortened
from jobledger.cli.times import parse_time, seconds, time_of
from jobledger.cli.webhooks.change import Name
from jobledger.ledger import Job, Ledger
from jobledger.ledger.model.errors import ResultTimeoutError
from jobledger.ledger.webhooks.redelivery import Only

_WAIT_S: Final = 30.0
_WAIT_S_MAX: Final = 3600.0

_Since = Annotated[
    str, typer.Option("--since", metavar="TIME", help="From this time on, or for a span such as 2d back.")
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Up to this time. (default: to now)")
]
_Only = Annotated[
    str, typer.Option("--only", metavar="WHICH", help="failed: what never arrived; all: what arrived, too.")
]
_Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SPAN", parser=seconds(0.0, _WAIT_S_MAX), help="Wait this long for the answer."
    ),
]


@command(WEBHOOKS, "test")
async def try_(cli: Cli, *, name: Name, wait: _Wait = _WAIT_S) -> int:
    """Post a message of type webhook.test to the receiver, and show its answer. A gateway must run."""
    async with cli.ledger() as ledger:
        job = await try_webhook(ledger, name, by=operator())
        ended = await _ended(ledger, job, wait)
        result = await job.result(timeout_s=1.0) if ended is not None and ended.state == "completed" else None
    if cli.output.as_json:
        state = None if ended is None else ended.state.value
        cli.output.object({"webhook": name, "job": job.id, "state": state, "result": result})
    else:
        _tell_test(cli.output, job.id, ended, result)
    return DONE if result is not None else FAILED


async def _ended(_ledger: Ledger, job: Any, wait_s: float) -> Job | None:
    try:
        found: Job = await job.wait(timeout_s=wait_s)
    except ResultTimeoutError:
        return None
    return found


def _tell_test(output: Output, job_id: str, ended: Job | None, result: Any) -> None:
    if result is not None:
        output.say(f"the receiver answered {result['status']} in {result['took_ms']} ms")
        if result["answer"]:
            output.say(shortened(result["answer"], 500))
    elif ended is None:
        output.say(
            f"no gateway has sent it yet: start one with `jobledger gateway`, then `jobledger jobs show {job_id}`"
        )
    else:
        errors = [each.error.message for each in ended.attempts if each.error is not None]
        output.say(f"not delivered: {plain(errors[-1]) if errors else ended.state.value}")


@command(WEBHOOKS, "redeliver")
async def redeliver(
    cli: Cli,
    *,
    name: Name,
    since: _Since,
    until: _Until = None,
    only: _Only = "failed",
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Send past events again, from the ledger: those that never arrived, or all events of a range of time."""
    if only not in get_args(Only):
        raise UsageError(f"--only {only[:60]!r} is neither failed nor all")
    which = cast("Only", only)
    begin, end = parse_time("--since", since), time_of("--until", until)
    async with cli.ledger() as ledger:

        async def perform(*, plan: bool) -> RedeliveryResult:
            with cli.output.progress("sending") as progress:
                return await redeliver_events(
                    ledger, name, since=begin, until=end, only=which, plan=plan, on_progress=progress
                )

        found = await perform(plan=True)
        if not plan and found.owed:
            if not yes:
                await ask(cli.output, f"send {found.owed:,} event{'s' * (found.owed != 1)} to {name} again?")
            found = await perform(plan=False)
    _tell_redelivered(cli.output, found, plan=plan)


def _tell_redelivered(output: Output, found: RedeliveryResult, *, plan: bool) -> None:
    if output.as_json:
        output.object(msgspec.to_builtins(found))
        return
    output.say(
        f"{found.matched:,} events match: {found.delivered:,} arrived, {found.under_way:,} are under way, "
        f"{found.owed:,} {'are' if found.only == 'all' else 'never arrived and are'} to be sent"
    )
    if found.owed:
        output.say(f"the first is at stream sequence {found.first}, the last at {found.last}")
    if plan:
        output.say("nothing was sent")
    elif found.made is not None:
        output.say(
            f"{found.made:,} deliveries were made; `jobledger jobs list --queue webhooks-out` shows them"
        )
