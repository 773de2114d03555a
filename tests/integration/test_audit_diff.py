"""What changed between two moments: the same as folding both prefixes and comparing, whatever the history."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.histories import memory_history, random_history, ref_of

from jobledger.audit.diff import UNKNOWN, Difference, Side, compare
from jobledger.audit.export import ExportLog, Selection, write_export
from jobledger.cli.main import run
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Started
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog

if TYPE_CHECKING:
    from jobledger.ledger import Ledger

pytestmark = pytest.mark.anyio

Names = tuple[str, str]


async def all_of(log: Log) -> list[Message]:
    return [message async for batch in log.read_messages() for message in batch]


async def states(log: Log, last: int) -> dict[Names, Job]:
    jobs: dict[Names, Job] = {}
    for message in await all_of(log):
        if isinstance(message, StoredEvent) and message.stream_sequence <= last:
            name = (message.event.queue, message.event.job)
            jobs[name] = evolve(jobs.get(name), message.event, message.stream_sequence)
    return jobs


async def side(log: Log, last: int | None = None) -> Side:
    head = await log.head()
    end = head.last_sequence if last is None else last
    return Side(log=log, first_sequence=max(1, head.first_sequence), last_sequence=end)


async def expected(log: Log, first: int, last: int) -> dict[Names, tuple[str | None, str | None, int, int]]:
    """Return state before, state after, events and attempts added, of every job with an event between."""
    then, now = await states(log, first), await states(log, last)
    between = [
        message.event
        for message in await all_of(log)
        if isinstance(message, StoredEvent) and first < message.stream_sequence <= last
    ]
    events = Counter((event.queue, event.job) for event in between)
    attempts = Counter((event.queue, event.job) for event in between if isinstance(event, Started))
    return {
        name: (then[name].state if name in then else None, now[name].state, count, attempts[name])
        for name, count in events.items()
    }


def got(difference: Difference) -> dict[Names, tuple[str | None, str | None, int, int]]:
    return {
        (each.queue, each.id): (each.before, each.after, each.events_added, each.attempts_added)
        for each in difference.jobs
    }


@pytest.mark.parametrize("seed", range(5))
async def test_a_difference_is_what_both_folds_say(seed: int, tmp_path: Path) -> None:
    log = await memory_history(seed, jobs=40, steps=300)
    last = (await log.head()).last_sequence
    await write_export(log, tmp_path / "all")
    for first, end in ((0, last), (last // 3, 2 * last // 3), (last - 1, last), (5, 5), (last, last)):
        wanted = await expected(log, first, end)
        found = await compare(await side(log, first), await side(log, end))
        assert got(found) == wanted
        assert (found.shares_past, found.events_added) == (True, end - first)
        totals = Counter((name[0], before, after) for name, (before, after, _, _) in wanted.items())
        assert {(t.queue, t.before, t.after): t.jobs for t in found.transitions} == totals
        if first:
            await write_export(log, tmp_path / f"to-{first}-{end}", last=first)
            export = ExportLog(tmp_path / f"to-{first}-{end}")
            assert got(await compare(await side(export), await side(log, end))) == wanted
            whole = await side(ExportLog(tmp_path / "all"), end)
            assert got(await compare(await side(export), whole)) == wanted


async def test_the_first_sequence_at_which_two_pasts_differ_is_named() -> None:
    one, other = MemoryLog(), MemoryLog()
    await random_history(one, 1, jobs=20, steps=60)
    await random_history(other, 1, jobs=20, steps=40)
    shared = (await other.head()).last_sequence
    same = await compare(await side(one, shared - 3), await side(other))
    assert (same.shares_past, same.compared_to, same.events_added) == (True, shared - 3, 3)
    await random_history(other, 9, jobs=20, steps=40)
    found = await compare(await side(one), await side(other))
    events = list(zip(await all_of(one), await all_of(other), strict=False))
    first = next(a.stream_sequence for a, b in events if (a.subject, a.data) != (b.subject, b.data))
    assert (found.shares_past, found.first_difference) == (False, first)
    ends = (await one.head()).last_sequence, (await other.head()).last_sequence
    assert found.events_added == ends[1] - ends[0]
    now = {**dict.fromkeys(got(found)), **await states(other, ends[1])}
    then = {**dict.fromkeys(got(found)), **await states(one, ends[0])}
    for name, (before, after, _, _) in got(found).items():
        assert before == (None if then[name] is None else then[name].state)  # type: ignore[union-attr]
        assert after == (None if now[name] is None else now[name].state)  # type: ignore[union-attr]


async def test_what_began_before_an_export_is_unknown_until_it_is_carried(tmp_path: Path) -> None:
    log = await memory_history()
    last = (await log.head()).last_sequence
    await write_export(log, tmp_path / "part", first=40, last=90)
    part = ExportLog(tmp_path / "part")
    found = await compare(await side(part, 60), await side(part))
    wanted = await expected(log, 60, 90)
    assert set(got(found)) == set(wanted)
    whole = {name for name in await states(log, 90) if _born(await all_of(log), name) >= 40}
    for name, (before, after, *_) in got(found).items():
        if name in whole:
            assert (before, after) == wanted[name][:2]
        else:
            assert UNKNOWN in (before, after)
    assert got(await compare(await side(log, 60), await side(part))) == wanted
    await write_export(log, tmp_path / "far", first=last - 3)
    with pytest.raises(InvalidInputError, match="nothing in common"):
        await compare(await side(part), await side(ExportLog(tmp_path / "far")))


def _born(messages: list[Message], name: Names) -> int:
    return next(
        each.stream_sequence
        for each in messages
        if isinstance(each, StoredEvent) and (each.event.queue, each.event.job) == name
    )


async def test_the_commands_export_and_compare_a_real_ledger(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    await random_history(ledger.log, 6, jobs=20, steps=60)
    head = (await ledger.log.head()).last_sequence
    moment = (await all_of(ledger.log))[29].stored_at
    wanted = await expected(ledger.log, 30, head)
    where = ["--url", ledger.config.url, "--environment", ledger.names.environment]

    def answer(*words: str) -> tuple[int, str, str]:
        code = run(["audit", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    def commands() -> None:
        early, late, one = (str(tmp_path / name) for name in ("early", "late", "one"))
        assert answer("export", early, "--to", "30", *where)[0] == 0
        code, out, _ = answer(
            "export", late, "--since", "2020-01-01", "--format", "parquet", "--json", *where
        )
        assert (code, json.loads(out)["count"], json.loads(out)["complete"]) == (0, head, True)
        assert out == answer("export", late, "--format", "parquet", "--json", *where)[1]
        ref = ref_of(3)
        assert answer("export", one, "--queue", ref.queue, "--job", ref.job_id, *where)[0] == 0
        for words in (["30", "head"], [moment.isoformat(), str(head)], [early, "head"]):
            code, out, err = answer("diff", *words, "--json", "--limit", "3", *where)
            assert (code, err) == (0, "")
            found = json.loads(out)
            assert (found["shares_past"], found["jobs_changed"], len(found["jobs"])) == (True, len(wanted), 3)
            assert sum(each["jobs"] for each in found["transitions"]) == len(wanted)
        code, out, err = answer("diff", early, late, "--limit", "2")
        assert code == 0
        assert f"{len(wanted)} jobs changed from stream sequence 30 to {head}" in out
        assert f"2 of {len(wanted)} jobs are listed" in err
        for words, expected_code, sentence in (
            (["export", late, *where], 4, "holds another export"),
            (["export", str(tmp_path), *where], 4, "choose another folder"),
            (["export", str(tmp_path / "x"), "--job", "nobody", *where], 3, "no job 'nobody'"),
            (["export", str(tmp_path / "x"), "--queue", "nowhere", *where], 3, "no event of queue nowhere"),
            (["export", str(tmp_path / "x"), "--queue", "a.b", *where], 2, "is not valid"),
            (["export", str(tmp_path / "x"), "--from", "9", "--to", "3", *where], 2, "comes before"),
            (["export", str(tmp_path / "x"), "--from", "9", "--since", "2020-01-01", *where], 2, "both say"),
            (["export", str(tmp_path / "x"), "--until", "2020-01-01", *where], 3, "no event was stored"),
            (["diff", "9", "3", *where], 2, "comes after"),
            (["diff", "no", "3", *where], 2, "is not a stream sequence"),
            (["diff", early, one], 0, ""),
        ):
            code, _, err = answer(*words)
            assert (code, sentence in err) == (expected_code, True), (words, err)
        assert not (tmp_path / "x").exists()

    await asyncio.to_thread(commands)
    await write_export(ledger.log, tmp_path / "q", selection=Selection(queue="queue-1"))
    forged = MemoryLog(names=ledger.names)
    await random_history(forged, 7, jobs=20, steps=40)
    await write_export(forged, tmp_path / "other")
    code, out, err = await asyncio.to_thread(answer, "diff", str(tmp_path / "early"), str(tmp_path / "other"))
    assert code == 4
    assert "the two differ from stream sequence 1 on" in out
    assert "the two differ from stream sequence 1 on" in err
