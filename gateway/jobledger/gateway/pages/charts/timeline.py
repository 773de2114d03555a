"""A timeline: lines of running and waiting on one axis of time; long waits are folded, many jobs are a crowd. Pure.

It draws a job's attempts, a run's steps and the jobs below it. Names, links and what can be opened are HTML beside each
line, so keyboards and screen readers reach each line as a row; only the bars are SVG.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from markupsafe import Markup, escape

from jobledger.gateway.pages.charts.marks import number, title
from jobledger.gateway.pages.words import took

# The axis of time, with long waits folded, so that one night does not make a job's attempts too small to see. Pure.

#: A wait is folded if it is longer than this many times all other unfolded spans together.
_TIMES: Final = 4
_FOLD: Final = 7.0  #: percent of the width that a folded wait gets
_FOLDS_MAX: Final = 8


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The time between two moments at which something began or ended."""

    begin: datetime
    end: datetime
    x: float  #: its beginning in percent of the width
    width: float
    folded: bool

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return (self.end - self.begin).total_seconds()


class FoldedTime(msgspec.Struct, frozen=True, kw_only=True):
    """A line of time, from 0 to 100 percent."""

    pieces: tuple[Piece, ...]

    def x(self, moment: datetime) -> float:
        """Return the place of a moment; for one outside of the line, the nearest end."""
        index = max(0, bisect.bisect_right(self.pieces, moment, key=lambda piece: piece.begin) - 1)
        piece = self.pieces[index]
        passed = min(piece.seconds, max(0.0, (moment - piece.begin).total_seconds()))
        return piece.x + (piece.width * passed / piece.seconds if piece.seconds else 0.0)

    def elapsed(self, x: float) -> float | None:
        """Return the seconds from the beginning to a place; None within a fold."""
        piece = next((each for each in self.pieces if each.x <= x <= each.x + each.width), self.pieces[-1])
        if piece.folded:
            return None
        share = (x - piece.x) / piece.width if piece.width else 0.0
        return (piece.begin - self.pieces[0].begin).total_seconds() + piece.seconds * min(1.0, share)


def folded_time(moments: Sequence[datetime], active: Sequence[tuple[datetime, datetime]]) -> FoldedTime:
    """Return the line from the first to the last of `moments`, at least one; nothing in `active` is folded."""
    ends = sorted(set(moments))
    if len(ends) == 1:
        ends.append(ends[0])
    spans = list(itertools.pairwise(ends))
    seconds = [(end - begin).total_seconds() for begin, end in spans]
    waits = [not any(a < end and b > begin for a, b in active) for begin, end in spans]
    folds = _folds(seconds, waits)
    room = 100.0 - _FOLD * len(folds)
    drawn = sum(each for index, each in enumerate(seconds) if index not in folds)
    pieces: list[Piece] = []
    x = 0.0
    for index, (begin, end) in enumerate(spans):
        wide = _FOLD if index in folds else room * seconds[index] / drawn if drawn else room / len(spans)
        pieces.append(Piece(begin=begin, end=end, x=x, width=wide, folded=index in folds))
        x += wide
    return FoldedTime(pieces=tuple(pieces))


def _folds(seconds: Sequence[float], waits: Sequence[bool]) -> frozenset[int]:
    """Return the spans to fold: the longest wait again and again, while it outweighs the rest `_TIMES` times."""
    left = sum(seconds)
    found: set[int] = set()
    for index in sorted((i for i, wait in enumerate(waits) if wait), key=lambda i: -seconds[i])[:_FOLDS_MAX]:
        rest = left - seconds[index]
        if rest <= 0 or seconds[index] <= _TIMES * rest:
            break
        found.add(index)
        left = rest
    return frozenset(found)


HIGH: Final = 26  #: height of a line in pixels
CROWD_HIGH: Final = 40
_BINS: Final = 150  #: bars across a crowd
_NEAR: Final = 7.0  #: percent of the width: texts closer than this would overlap
_PER_TICK: Final = 15.0  #: percent of the width for a tick's text
_SAY_MIN: Final = 12.0  #: percent of the width that words beside a bar need
_PER_PERCENT: Final = 1.15  #: characters that fit into one percent of the width
_NICE: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


Kind = Literal["run", "wait", "hold"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a line."""

    begin: datetime
    end: datetime
    kind: Kind  #: run: thick; wait: thin; hold: dashed, a wait for a time or a message
    style: str  #: a class that carries the colour
    words: str
    after: bool = False  #: True if it is later than the moment shown


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a line: a try that failed, an event."""

    at: datetime
    style: str
    words: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line, and what stands beside it."""

    name: str
    kind: str = ""  #: what it is, in a word
    state: str = ""  #: of a step or a job; its badge
    took_s: float | None = None
    more: str = ""  #: some words behind the name
    crowded: bool = False  #: the line is many jobs: show `more` even if bars fill the axis
    depth: int = 0
    href: str = ""  #: the address of its details; "": none
    toggle: str = ""  #: the address that shows or hides the lines below it; "": none are below
    is_open: bool = False
    is_here: bool = False  #: True while its details are shown
    spans: tuple[Span, ...] = ()
    ticks: tuple[Tick, ...] = ()
    crowd: tuple[Span, ...] = ()  #: many jobs at once, drawn as the number that ran


class TimelinePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline as a template shows it."""

    axis: Markup
    rows: list[tuple[Line, Markup]]


def timeline(
    lines: Sequence[Line], *, begin: datetime, end: datetime, cut: datetime | None = None
) -> TimelinePicture:
    """Return the picture of the time from `begin` to `end`; `cut`: the moment shown, if it is in the past."""
    every = [span for line in lines for span in (*line.spans, *line.crowd)]
    ran = merged((span.begin, span.end) for span in every if span.kind == "run")
    moments = [begin, max(end, begin), *(moment for pair in ran for moment in pair if begin <= moment <= end)]
    time = folded_time(moments, ran)
    ticks = _ticks(time)
    folds = [(piece.x, piece.width) for piece in time.pieces if piece.folded]
    behind = [*(_rule(x) for x, _ in ticks), *(_fold(x, width) for x, width in folds)]
    mark = (
        ""
        if cut is None
        else f'<line class="cut" x1="{number(time.x(cut))}%" x2="{number(time.x(cut))}%" y1="0" y2="100%"/>'
    )
    rows = [(line, _row(line, time, "".join(behind), mark)) for line in lines]
    texts = "".join(
        f'<text class="tick" x="{number(x)}%" y="13" text-anchor="{"start" if x < 2 else "end" if x > 97 else "middle"}">{escape(text)}</text>'  # noqa: PLR2004
        for x, text in ticks
    )
    texts += "".join(
        f'<text class="tick fold" x="{number(piece.x + piece.width / 2)}%" y="13" text-anchor="middle">{escape(took(piece.seconds))}</text>'
        for piece in time.pieces
        if piece.folded
    )
    axis = f'<svg class="axis" height="18" aria-hidden="true">{"".join(_fold(*each) for each in folds)}{texts}</svg>'
    return TimelinePicture(axis=Markup(axis), rows=rows)  # noqa: S704 - every text in it was escaped


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the union of some spans, as few spans as possible."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _row(line: Line, time: FoldedTime, behind: str, mark: str) -> Markup:
    high = CROWD_HIGH if line.crowd else HIGH
    inside = _crowd(line.crowd, time) if line.crowd else "".join(_bar(span, time) for span in line.spans)
    inside += "".join(_tick(tick, time) for tick in line.ticks) + _say(line, time)
    words = f"{line.name}: {line.state.replace('_', ' ')}" + (
        "" if line.took_s is None else f", {took(line.took_s)}"
    )
    return Markup(  # noqa: S704 - every text in it was escaped
        f'<svg class="track" height="{high}" role="img" aria-label="{escape(words)}">{behind}{inside}{mark}</svg>'
    )


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _bar(span: Span, time: FoldedTime) -> str:
    x1, x2 = time.x(span.begin), time.x(span.end)
    words = title(f"{span.words}\n{_clock(span.begin)} to {_clock(span.end)}")
    style = f"bar {span.kind} {span.style}{' after' if span.after else ''}"
    if span.kind == "hold":
        return f'<line class="{style}" x1="{number(x1)}%" x2="{number(max(x2, x1 + 0.3))}%" y1="13" y2="13">{words}</line>'
    y, high = (6, 14) if span.kind == "run" else (11, 4)
    return (
        f'<rect class="{style}" rx="{3 if span.kind == "run" else 2}" x="{number(min(x1, 99.6))}%" y="{y}" '
        f'width="{number(max(x2 - x1, 0.4 if span.kind == "run" else 0.15))}%" height="{high}">{words}</rect>'
    )


def _say(line: Line, time: FoldedTime) -> str:
    """Return the words of a line behind its last bar, or before its first one, where there is room for them."""
    if not line.more or not line.spans or line.crowded:
        return ""
    first, last = time.x(min(span.begin for span in line.spans)), max(time.x(span.end) for span in line.spans)
    style = "say bad" if line.state in {"failed", "dead_lettered", "retrying", "discarded"} else "say"
    if 100 - last >= max(first, _SAY_MIN):
        x, anchor, room = last + 0.8, "start", 100 - last
    elif first >= _SAY_MIN:
        x, anchor, room = first - 0.8, "end", first
    else:
        return ""
    text = (
        line.more
        if len(line.more) <= room * _PER_PERCENT
        else line.more[: int(room * _PER_PERCENT) - 1] + "…"
    )
    return f'<text class="{style}" x="{number(x)}%" y="17" text-anchor="{anchor}">{escape(text)}</text>'


def _tick(tick: Tick, time: FoldedTime) -> str:
    x = number(time.x(tick.at))
    return f'<circle class="dot {tick.style}" cx="{x}%" cy="13" r="3.500">{title(tick.words)}</circle>'


def _crowd(spans: Sequence[Span], time: FoldedTime) -> str:
    """Return bars with the number of jobs that ran at each place, completed ones lowest."""
    styles = list(
        dict.fromkeys(span.style for span in sorted(spans, key=lambda span: span.style != "t-completed"))
    )
    changes = {style: [0] * (_BINS + 1) for style in styles}
    for span in spans:
        first = int(time.x(span.begin) * _BINS / 100)
        last = max(first + 1, math.ceil(time.x(span.end) * _BINS / 100))
        changes[span.style][min(first, _BINS - 1)] += 1
        changes[span.style][min(last, _BINS)] -= 1
    counts = {style: _sums(each) for style, each in changes.items()}
    top = max((sum(each[place] for each in counts.values()) for place in range(_BINS)), default=0) or 1
    found, room = "", CROWD_HIGH - 4
    for place in range(_BINS):
        words: list[int] = []
        y = float(CROWD_HIGH - 1)
        for style in styles:
            value = counts[style][place]
            if value:
                high = max(1.0, value * room / top)
                y -= high
                words.append(value)
                found += f'<rect class="bar {style}" x="{number(100 * place / _BINS)}%" width="{number(100 / _BINS)}%" y="{number(y)}" height="{number(high)}">{title(f"{sum(words):,} at once")}</rect>'
    return f'<line class="rule" x1="0" x2="100%" y1="{CROWD_HIGH - 0.5}" y2="{CROWD_HIGH - 0.5}"/>{found}<text class="tick" x="100%" dx="-4" y="11" text-anchor="end">up to {top:,} at once</text>'


def _sums(changes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(changes))


def _rule(x: float) -> str:
    return f'<line class="rule" x1="{number(x)}%" x2="{number(x)}%" y1="0" y2="100%"/>'


def _fold(x: float, width: float) -> str:
    return f'<rect class="folded" x="{number(x)}%" width="{number(width)}%" y="0" height="100%"/>'


def _ticks(time: FoldedTime) -> list[tuple[float, str]]:
    """Return the places of round elapsed times, in each part that is not folded."""
    found: list[tuple[float, str]] = []
    passed, taken = 0.0, [piece.x + piece.width / 2 for piece in time.pieces if piece.folded]
    for x, width, seconds, before in _parts(time):
        passed = before
        step = _step(seconds / max(1, int(width / _PER_TICK)))
        first = math.ceil(passed / step - 1e-9)
        places = [passed] if not found else []
        places += [step * each for each in range(first, first + 40) if step * each <= passed + seconds]
        for elapsed in places:
            at = x + (width * (elapsed - passed) / seconds if seconds else 0)
            if all(abs(at - other) >= _NEAR for other in (*taken, *(each for each, _ in found))):
                found.append((at, _elapsed(elapsed, step)))
    return found


def _parts(time: FoldedTime) -> list[tuple[float, float, float, float]]:
    """Return the parts between folds: place, width, length in seconds, and seconds before each part."""
    found: list[list[float]] = []
    passed, joins = 0.0, False
    for piece in time.pieces:
        if piece.folded:
            joins = False
        elif joins:
            found[-1][1] += piece.width
            found[-1][2] += piece.seconds
        else:
            found.append([piece.x, piece.width, piece.seconds, passed])
            joins = True
        passed += piece.seconds
    return [(x, width, seconds, before) for x, width, seconds, before in found]


def _step(seconds: float) -> float:
    if seconds <= 0:
        return 1.0
    if seconds <= 1:
        power = 10.0 ** math.floor(math.log10(seconds))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= seconds * (1 - 1e-9))
    return next(
        (float(each) for each in _NICE if each >= seconds), float(_NICE[-1]) * math.ceil(seconds / _NICE[-1])
    )


def _elapsed(seconds: float, step: float) -> str:
    """Return the text of an elapsed time, as exact as the step between such texts needs."""
    if not seconds:
        return "0"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    if seconds < 1:
        return f"{seconds * 1000:.{max(0, digits - 3)}f} ms"
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes:.0f}:{rest:0{3 + digits if digits else 2}.{digits}f}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:.0f}:{minutes:02.0f}:{rest:02.0f}" if hours < 48 else f"{hours / 24:.1f} d"  # noqa: PLR2004
