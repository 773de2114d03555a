"""Parts of the dashboard that need no ledger: its files, its words, and the renderings that all who look share."""

from __future__ import annotations

import asyncio
import hashlib
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from jobledger.gateway.pages.dashboard import FRESH_S, KEPT_MAX, SharedPages
from jobledger.gateway.pages.html import STATIC
from jobledger.gateway.pages.memo import Memo
from jobledger.gateway.pages.views.levels import added
from jobledger.gateway.pages.words import ago, count, cut, json_colours, percent, said, short
from jobledger.ledger.model.clock import Clock
from jobledger.projections.statistics.tally import QUEUE_COUNTS

TEMPLATES = STATIC.parent / "templates"
SCRIPT_LINES_MAX = 480
NOW = datetime(2026, 1, 1, 8, tzinfo=UTC)


class Still(Clock):
    """Time that a test moves."""

    at = 100.0

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return self.at


def test_the_vendored_file_is_the_one_that_is_named() -> None:
    told = (STATIC / "VENDORED.md").read_text(encoding="utf-8")
    assert hashlib.sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() in told
    assert "0BSD" in told


def test_our_own_script_is_short_and_compiles_no_code() -> None:
    own = {name: (STATIC / name).read_text(encoding="utf-8") for name in ("live.js", "theme.js")}
    assert sum(text.count("\n") for text in own.values()) <= SCRIPT_LINES_MAX
    for name, text in own.items():
        assert not re.search(r"\beval\(|new Function|innerHTML *=|insertAdjacent|document\.write", text), name


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    for path in sorted(TEMPLATES.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:|https?://", text), path.name
        safe = re.findall(r"\S+\|safe", text)
        assert safe in ([], ["icons[name]|safe"]), path.name
    css = (STATIC / "app.css").read_text(encoding="utf-8")
    assert "url(" not in css
    assert "@import" not in css


def test_every_address_in_a_template_is_of_the_one_function_that_keeps_range_and_moment() -> None:
    """Pages of nobody's session have no moment: the login, and what went wrong."""
    named = r"""\b(?:href|action|formaction|src|hx-(?:get|post)|data-peek)=["'](?!#|{{ (?:address|here_with|part\.|assets))[^"']+"""
    let = (  # as views and macros made them by the same function
        "shell.path", "page.path", "line.href", "line.toggle", "noun_address", "now_address", "now_here", "then_here", "there }}", "rows_ }}",
    )  # fmt: skip
    for path in sorted(TEMPLATES.iterdir()):
        if path.name in {"login.html", "problem.html"}:
            continue
        text = path.read_text(encoding="utf-8")
        found = [
            each for each in re.findall(named, text) if not any(f"{{{{ {known}" in each for known in let)
        ]
        assert found == [], path.name
        assert text.count("now_address(") == (3 if path.name == "parts.html" else 0), path.name
        for form in re.findall(
            r'<form[^>]*method="get".*?</form>|<form class="find".*?</form>', text, re.DOTALL
        ):
            assert "carried(shell" in form, (
                f"{path.name}: a browser drops what stands behind the ? of this form's address"
            )


def test_words_are_short_and_say_what_is_not_known() -> None:
    assert [count(1234), count(99.94), count(0.25), count(3.0)] == ["1,234", "99.9", "0.2", "3"]
    assert [percent(None), percent(0), percent(0.0123), percent(1)] == ["–", "0 %", "1.2 %", "100 %"]  # noqa: RUF001
    moments = [NOW, NOW - timedelta(seconds=61), NOW + timedelta(days=3), None]
    assert [ago(at, NOW) for at in moments] == ["now", "1 min ago", "in 3 d", "–"]  # noqa: RUF001
    assert (short("a" * 18), short("0123456789" * 3)) == ("a" * 18, "01234567…456789")
    assert cut("a\n  b" * 9, 5) == "a ba…"
    assert [said("failed: attempt 1", "failed"), said("dead lettered: x", "dead_lettered")] == [
        "attempt 1",
        "x",
    ]


@pytest.mark.parametrize(
    "value", ["</pre><script>alert(1)</script>", {"<b>": ['"', "\\", "&"]}, 'a": 1', None, [1.5e9, True]]
)
def test_json_in_colours_is_the_same_text_and_never_html(value: object) -> None:
    shown = json_colours(value)
    assert "<script" not in shown
    assert "<b>" not in shown
    plain = shown.striptags()
    assert msgspec.json.decode(plain) == value


def test_a_very_long_value_is_cut() -> None:
    shown = json_colours(["x" * 50_000])
    assert "more characters" in shown
    assert len(shown) < 25_000


def test_several_queues_are_added_up_minute_by_minute() -> None:
    def level(end: int, **counts: int) -> tuple[int, tuple[int, ...]]:
        return end - 1, tuple(counts.get(state, 0) for state in QUEUE_COUNTS)  # of the minute that ends then

    found = added([[level(1, queued=1), level(3, queued=2)], [level(2, queued=10), level(3, running=1)]])
    assert found.minutes == [1, 2, 3]
    assert found.states["queued"] == [1, 11, 2]
    assert found.states["running"] == [0, 0, 1]
    assert found.states["later"] == [0, 0, 0]
    assert added([]).minutes == []


@pytest.mark.anyio
async def test_a_page_is_made_once_for_all_who_look_at_once() -> None:
    clock, made = Still(), 0
    shared = SharedPages(clock)

    async def make() -> bytes:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return b"%d" % made

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(shared.get("a", make)) for _ in range(20)]
    assert {each.result() for each in asked} == {b"1"}
    assert await shared.get("a", make) == b"1"
    assert await shared.get("b", make) == b"2"
    clock.at += FRESH_S
    assert await shared.get("a", make) == b"3"
    shared.forget()
    assert await shared.get("a", make) == b"4"


@pytest.mark.anyio
async def test_a_page_that_failed_is_made_again_and_one_who_leaves_ends_it_for_nobody() -> None:
    shared, going_on = SharedPages(Still()), asyncio.Event()

    async def fail() -> bytes:
        raise ValueError("broken")

    async def make() -> bytes:
        await going_on.wait()
        return b"made"

    with pytest.raises(ValueError, match="broken"):
        await shared.get("a", fail)
    first, second = (asyncio.create_task(shared.get("a", make)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    going_on.set()
    assert await second == b"made"


@pytest.mark.anyio
async def test_only_so_many_renderings_are_kept() -> None:
    made: list[int] = []
    shared = SharedPages(Still())
    for number in range(KEPT_MAX + 1):

        async def make(number: int = number) -> bytes:
            made.append(number)
            return b""

        await shared.get(number, make)
    await shared.get(1, _never)
    assert len(made) == KEPT_MAX + 1
    with pytest.raises(AssertionError):
        await shared.get(0, _never)


async def _never() -> bytes:
    raise AssertionError


@pytest.mark.anyio
async def test_costly_parts_are_kept_for_a_while() -> None:
    clock, made = Still(), 0
    kept = Memo(clock)

    async def make() -> int:
        nonlocal made
        made += 1
        return made

    assert [await kept.get("a", make, fresh_s=5) for _ in range(3)] == [1, 1, 1]
    clock.at += 5
    assert await kept.get("a", make, fresh_s=5) == 2
    assert await kept.get("a", make, fresh_s=0) == 3
    kept.forget()
    assert await kept.get("a", make, fresh_s=5) == 4
