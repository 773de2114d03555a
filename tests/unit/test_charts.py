"""Charts: what is drawn where, and that every text of somebody else is escaped."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from jobledger.gateway.pages.charts.bars import Happened, bars, share, strip
from jobledger.gateway.pages.charts.folding import folded_time
from jobledger.gateway.pages.charts.graph import Box, graph
from jobledger.gateway.pages.charts.lines import lines, spark
from jobledger.gateway.pages.charts.marks import Series, TimeAxis, scale_of
from jobledger.gateway.pages.charts.waterfall import LANES_MAX, Bar, Drawn, Mark, waterfall
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
    series = [
        Series(name="mail", values=[1, 0, 3], style="k0"),
        Series(name=HOSTILE, values=[1, 0, 0], style="k1"),
    ]
    drawn = bars(AXIS, series, label="Jobs " + HOSTILE, said=count, height=100)
    assert _is_clean(drawn)
    ys = [float(y) for y in re.findall(r'<rect class="k\d" [^>]*y="([\d.]+)"', drawn)]
    assert ys[0] > ys[1] > ys[2]  # the second stands on the first; three are higher than two
    assert re.findall(r'data-at="([^"]+)"', drawn) == [
        "2026-01-01T08:01:00Z",
        "2026-01-01T08:02:00Z",
        "2026-01-01T08:03:00Z",
    ]
    assert "mail 3" in drawn
    assert "highest 3" in drawn
    assert "nothing" in drawn


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    axis = TimeAxis(begin=BEGIN, step_s=60, count=5)
    values = [1.0, 2.0, None, 3.0, None]
    drawn = lines(axis, [Series(name="p50", values=values, style="k0")], label="Waits", said=took)
    assert _is_clean(drawn)
    path = re.search(r' d="([^"]+)"', drawn)
    assert path is not None
    assert path[1].count("M") == 2
    assert path[1].endswith("h200")  # a value alone is a line across its fifth of the width
    assert "nothing to show" in lines(
        axis, [Series(name="p50", values=[None] * 5, style="k0")], label="Waits", said=took
    )


def test_small_pictures_draw_nothing_and_everything() -> None:
    assert spark([], style="k0")
    assert spark([0, 0], style="k0")
    assert "died" in strip([Happened(), Happened(completed=3, failed=1, dead=1)])
    assert strip([])
    drawn = share([("t-queued", HOSTILE, 1), ("t-running", "running", 0)], label="x")
    assert _is_clean(drawn)
    assert drawn.count("<rect") == 1


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


def test_a_waterfall_has_a_lane_for_each_attempt_up_to_twelve() -> None:
    spans = [
        Bar(begin=_at(n), end=_at(n + 1), lane=n + 1, runs=True, style="t-dead", words=HOSTILE)
        for n in range(20)
    ]
    marks = [Mark(at=_at(n), style="t-running", words=HOSTILE) for n in range(21)]
    drawn = waterfall(Drawn(bars=spans, marks=marks, cut=_at(3), end=_at(20)), label=HOSTILE, said=took)
    assert _is_clean(drawn)
    assert drawn.count('class="lane"') == LANES_MAX
    assert "attempt 20" in drawn
    assert "attempt 8<" not in drawn
    assert drawn.count("<circle") == 21
    assert 'class="cut"' in drawn


def test_a_remark_during_a_long_wait_does_not_unfold_it() -> None:
    ran = Bar(begin=_at(0), end=_at(1), lane=1, runs=True, style="t-dead", words="ran")
    waits = Bar(begin=_at(1), end=_at(9000), lane=2, runs=False, style="t-waiting", words="waits")
    marks = [Mark(at=_at(at), style="t-ended", words="noted") for at in (0, 1, 3000, 6000)]
    drawn = waterfall(Drawn(bars=[ran, waits], marks=marks, end=_at(9000)), label="x", said=took)
    assert drawn.count('class="fold"') == 1


def test_events_at_one_place_are_one_dot() -> None:
    marks = [Mark(at=_at(n / 1000), style="t-running", words=str(n)) for n in range(1000)]
    marks.append(Mark(at=_at(1000), style="t-completed", words="end"))
    bar = Bar(begin=_at(0), end=_at(1000), lane=1, runs=True, style="t-completed", words="ran")
    drawn = waterfall(Drawn(bars=[bar], marks=marks, end=_at(1000)), label="x", said=took)
    assert drawn.count("<circle") == 2


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
