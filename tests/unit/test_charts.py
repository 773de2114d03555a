"""Charts: what is drawn where, and that every text of somebody else is escaped."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from markupsafe import Markup

from jobledger.gateway.pages.charts.graph import Box, graph
from jobledger.gateway.pages.charts.marks import Series, TimeAxis, scale_of
from jobledger.gateway.pages.charts.plot import Note, histogram, plot, share, spark
from jobledger.gateway.pages.charts.timeline import Line, Span, Tick, folded_time, timeline
from jobledger.gateway.pages.words import count, took

BEGIN = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
AXIS = TimeAxis(begin=BEGIN, step_s=60, count=3)
HOSTILE = "</title><script>alert(1)</script>\"'"


def _at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def _is_clean(drawn: Markup) -> bool:
    return "<script" not in drawn and "style=" not in drawn and " on" not in re.sub(r">[^<]*<", "><", drawn)


def test_a_scale_ends_with_a_round_number_that_is_not_lower_than_what_is_shown() -> None:
    rows = [(0, 1), (1, 1), (3, 3), (5, 6), (17, 20), (100, 100), (101, 150), (1234, 1500), (999, 1000)]
    for highest, top in rows:
        scale = scale_of(highest, 4, whole=True)
        assert (scale.top, scale.step % 1) == (top, 0), highest
    assert scale_of(0.3, 2, whole=False).top == 0.4


def test_bars_stand_on_each_other_and_say_what_they_are() -> None:
    stack = [
        Series(name="mail", values=[1, 0, 3], style="k0"),
        Series(name=HOSTILE, values=[1, 0, 0], style="k1"),
    ]
    note = Note(at=_at(90), words=HOSTILE)
    drawn = plot(AXIS, stack=stack, notes=[note], label="Jobs " + HOSTILE, said=count, height=100)
    assert _is_clean(drawn)
    ys = [float(y) for y in re.findall(r'<rect class="k\d" [^>]*y="([\d.]+)"', drawn)]
    assert ys[0] > ys[1] > ys[2]  # the second stands on the first; three are higher than two
    assert re.findall(r'data-from="([^"]+)" data-to="([^"]+)"', drawn) == [
        ("2026-01-01T08:00:00Z", "2026-01-01T08:01:00Z"),
        ("2026-01-01T08:01:00Z", "2026-01-01T08:02:00Z"),
        ("2026-01-01T08:02:00Z", "2026-01-01T08:03:00Z"),
    ]
    assert 'cx="50%"' in drawn  # of the note
    assert "mail 3" in drawn
    assert "highest 3" in drawn
    assert "nothing" in drawn


def test_a_bar_far_beyond_the_others_is_torn_and_says_how_high_it_is() -> None:
    axis = TimeAxis(begin=BEGIN, step_s=60, count=40)
    values = [10.0] * 39 + [2331.0]
    drawn = plot(axis, stack=[Series(name="mail", values=values, style="k0")], label="Jobs", said=count)
    assert drawn.count('class="torn"') == 1
    assert ">2,331<" in drawn
    even = plot(axis, stack=[Series(name="mail", values=[10.0] * 40, style="k0")], label="Jobs", said=count)
    assert "torn" not in even


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    axis = TimeAxis(begin=BEGIN, step_s=60, count=5)
    values = [1.0, 2.0, None, 3.0, None]
    drawn = plot(axis, lines=[Series(name="p50", values=values, style="k0")], label="Waits", said=took)
    assert _is_clean(drawn)
    path = re.search(r' d="([^"]+)"', drawn)
    assert path is not None
    assert path[1].count("M") == 2
    assert path[1].endswith("h200")  # a value alone is a line across its fifth of the width
    nothing = [Series(name="p50", values=[None] * 5, style="k0")]
    assert "nothing to show" in plot(axis, lines=nothing, label="Waits", said=took)


def test_small_pictures_draw_nothing_and_everything() -> None:
    assert spark([], style="k0")
    assert spark([0, 0], style="k0")
    assert spark([0, 3], style="k0", bars=True).count("<rect") == 1
    drawn = share([("t-queued", HOSTILE, 1), ("t-running", "running", 0)], label="x")
    assert _is_clean(drawn)
    assert drawn.count("<rect") == 1
    drawn = histogram([(HOSTILE, 2), ("1 s", 0)], label=HOSTILE, marked=[(0.5, HOSTILE)])
    assert _is_clean(drawn)
    assert drawn.count('class="k0"') == 2
    drawn = histogram([("1 s", 2)], label="x", marked=[(0.5, "p50"), (0.5, "p95")])
    heights = re.findall(r'tick strong" x="[\d.]+%" dx="4" y="(\d+)"', drawn)
    assert len(set(heights)) == 2, "words of one place stand below each other"


def test_ticks_are_round_and_few_whatever_the_span() -> None:
    for step_s, spans in ((60, 60), (60, 20), (300, 72), (900, 96), (7200, 84), (86400, 400), (604800, 100)):
        ticks = TimeAxis(begin=_at(-step_s * 7), step_s=step_s, count=spans).ticks()
        assert 1 <= len(ticks) <= 8, (step_s, spans)


def test_a_long_wait_is_folded_and_what_runs_never_is() -> None:
    moments = [_at(0), _at(1), _at(2), _at(10_002), _at(10_003)]
    folded = folded_time(moments, [(_at(0), _at(1)), (_at(10_002), _at(10_003))])
    assert [piece.folded for piece in folded.pieces] == [False, False, True, False]
    assert (folded.x(_at(0)), round(folded.x(_at(10_003)), 6)) == (0, 100)
    assert folded.x(_at(-5)) == 0
    assert round(folded.x(_at(99_999)), 6) == 100
    assert folded.elapsed(folded.x(_at(2)) + 1) is None
    assert folded.elapsed(100) == 10_003
    running = folded_time(moments, [(_at(0), _at(10_003))])
    assert not any(piece.folded for piece in running.pieces)


def test_moments_of_one_instant_have_a_line() -> None:
    folded = folded_time([BEGIN, BEGIN], [])
    assert folded.x(BEGIN) == 0
    assert folded.elapsed(50) == 0


def _span(
    begin: float, end: float, *, style: str = "t-completed", kind: Literal["run", "hold"] = "run"
) -> Span:
    return Span(begin=_at(begin), end=_at(end), kind=kind, style=style, words=HOSTILE)


def test_a_timeline_has_a_row_for_each_line_and_says_what_happened() -> None:
    lines = [
        Line(name=HOSTILE, state="failed", more=HOSTILE, spans=(_span(0, 2, style="t-dead"),)),
        Line(name="pay", spans=(_span(2, 5),), ticks=(Tick(at=_at(3), style="t-dead", words=HOSTILE),)),
    ]
    drawn = timeline(lines, begin=BEGIN, end=_at(10), cut=_at(3))
    assert [line.name for line, _ in drawn.rows] == [HOSTILE, "pay"]
    for _, picture in drawn.rows:
        assert _is_clean(picture)
        assert 'class="cut" x1="30%"' in picture
    assert "<circle" in drawn.rows[1][1]
    assert f"{_at(2):%H:%M:%S}.000 to {_at(5):%H:%M:%S}.000</title>" in drawn.rows[1][1]
    assert ">0<" in drawn.axis


def test_a_timeline_folds_a_wait_that_nothing_ran_in() -> None:
    waits = Line(name="waits", spans=(_span(1, 9000, kind="hold"),))
    drawn = timeline([Line(name="ran", spans=(_span(0, 1),)), waits], begin=BEGIN, end=_at(9001))
    assert drawn.axis.count('class="folded"') == 1


def test_many_at_once_are_one_row_with_few_marks() -> None:
    crowd = tuple(
        _span(n / 10, n / 10 + 3, style="t-dead" if n % 60 == 7 else "t-completed") for n in range(2000)
    )
    drawn = timeline([Line(name="rows", crowd=crowd)], begin=BEGIN, end=_at(203))
    ((_, picture),) = drawn.rows
    assert picture.count("<rect") < 500
    assert "up to 44 at once" in picture


def test_a_graph_draws_each_node_below_what_comes_before_it() -> None:
    rows = [
        [Box(id="1", label="a" * 60, style="t-completed", state="completed")],
        [
            Box(id="2", label=HOSTILE, style="t-running", state="running"),
            Box(id="3", label="c", style="t-queued", state="waiting"),
        ],
    ]
    drawn = graph(rows, [("1", "2"), ("1", "3"), ("1", "gone")], label="Steps")
    assert _is_clean(drawn)
    assert drawn.count('class="edge"') == 2
    assert "…" in drawn
