"""A page of jobs, or their number in each state, for `jobledger jobs list`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.admin.lists.jobs import CountedJobs, JobPage, count_jobs, list_jobs
from jobledger.admin.lists.search import unknown_values
from jobledger.admin.past import AsOf
from jobledger.admin.rows import View
from jobledger.cli import search
from jobledger.cli.command import Cli
from jobledger.cli.output import Output
from jobledger.cli.past import asked, option_words, rows_begin, viewed
from jobledger.cli.text import age, colored, shortened
from jobledger.ledger.model.times import shown_time
from jobledger.projections import JobFilter, JobRow, SearchLimits
from jobledger.projections.search import read_words

#: Columns of the list of jobs, which `_row` fills; one with `!` is never cut, one with `>` is right-aligned.
COLUMNS: Final = ("id!", "queue", "task", "status!", "age>")
_LIMITS: Final = SearchLimits(seconds_max=2.0)  #: a command delays only the person who typed it


async def show_jobs(
    cli: Cli,
    given: JobFilter,
    sought: str,
    *,
    limit: int,
    after: str | None,
    counts: bool,
    at: str | None,
    sequence: int | None,
) -> None:
    """Show the jobs that options and a search choose. Raises: UsageError, and as `list_jobs`."""
    past = asked(at, sequence)
    async with viewed(cli, past) as view:
        chosen = given.both(search.parsed(sought, view.now)) if sought else given
        if counts:
            _show_counts(cli.output, await count_jobs(view, chosen, limits=_LIMITS))
            return
        page = await list_jobs(view, chosen, cursor=after, limit=limit, limits=_LIMITS)
        unknown = [] if page.items else unknown_values(read_words(sought), view.store)
    words = list(_words(cli, sought, given, past, limit))
    _show(cli, page, view, words, is_bare=past is None and chosen == JobFilter(members=given.members))
    if not cli.output.as_json:
        for sentence in unknown:
            cli.output.note(sentence)


def _show(cli: Cli, page: JobPage, view: View, words: Sequence[str], *, is_bare: bool) -> None:
    """Show a page. `words`: the command that lists these jobs; `is_bare`: no option or search narrows the choice."""
    output = cli.output
    if output.as_json:
        for row in page.items:
            output.object({**msgspec.structs.asdict(row), **rows_begin(view)})
    elif page.items:
        output.table(COLUMNS, [_row(row, view.now) for row in page.items])
    elif page.next is None:
        said = "no jobs; add one with `jobledger enqueue`" if is_bare else "no jobs"
        output.say(
            said if is_bare or "--members" in words else f"{said}; children of runs are listed with --members"
        )
    if page.searched_back_to is not None:
        output.note(f"{_searched(page.searched_back_to)}, and older jobs may fit, too")
    if page.next is not None:
        output.note(f"the next page: `{' '.join(words)} --after {page.next}`")


def _show_counts(output: Output, found: CountedJobs) -> None:
    if output.as_json:
        output.object(found)
        return
    counts = [(colored(state), count) for state, count in found.by_state.items() if count]
    if counts:
        output.table(("status!", "jobs>"), counts)
    else:
        output.say("no jobs")
    if found.searched_back_to is not None:
        output.note(f"{_searched(found.searched_back_to)}: older ones are not counted")


def _searched(back_to: str) -> str:
    return f"only jobs since {shown_time(datetime.fromisoformat(back_to))} were looked at"


def _words(cli: Cli, sought: str, chosen: JobFilter, past: AsOf | None, limit: int) -> Iterator[str]:
    """Yield the words of the command that lists these jobs: the search, and the chosen options."""
    yield "jobledger jobs list"
    if sought:
        yield shlex.quote(sought)
    said = chosen.said
    repeated = {
        "state": chosen.states,
        "input": [f"{field}={value}" for field, value in chosen.input],
        "metadata": [f"{key}={value}" for key, value in said.metadata],
        "fingerprint": chosen.fingerprints,
    }
    single = {
        **{name: getattr(chosen, name) for name in ("queue", "task", "since", "until", "batch")},
        **{name: getattr(chosen, name) for name in ("id_prefix", "error_type", "text")},
        **{name: getattr(said, name) for name in said.__struct_fields__ if name != "metadata"},
        "trace": chosen.trace_id,
    }
    repeated |= {name: [value] for name, value in single.items() if value is not None}
    for name, values in repeated.items():
        for value in values:
            yield f"--{name.replace('_', '-')} {shlex.quote(value)}"
    yield from cli.place_words()
    if chosen.members:
        yield "--members"
    if past is not None:
        yield option_words(past)
    yield f"--limit {limit}"


def _row(row: JobRow, now: datetime) -> tuple[Any, ...]:
    created = datetime.fromisoformat(row.created_at)
    return (
        row.id,
        shortened(row.queue, 64),
        shortened(row.task, 64),
        colored(row.status),
        age(created, now).removesuffix(" ago"),
    )
