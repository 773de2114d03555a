"""The text of a scrape: what is written at once says what prometheus-client makes of the same samples."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics import exposition as open_metrics
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from jobledger.ledger.metrics.exposition import (
    Distribution,
    Measure,
    histograms,
    info,
    metrics_page,
    value,
    values,
)

# Without types in the library.
OPEN_PARSE: Any = open_parser.text_string_to_metric_families  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
OPEN_WRITE: Any = open_metrics.generate_latest  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
ODD = ('a"b', "a\\b", "a\nb", "ü\u2028{}", "", "a,b=c")
COUNTER = Measure("jobledger_jobs_total", "counter", "Jobs.", ("queue", "task"))
HISTOGRAM = Measure("jobledger_run_seconds", "histogram", 'Runs, "quoted".', ("queue",))
BOUNDS = (0.005, 1.0, 86_400.0)


class Fixed:
    """Families that somebody collected."""

    def __init__(self, *families: Any) -> None:
        self.families = families

    def collect(self) -> Any:
        return self.families


def ours() -> Fixed:
    return Fixed(
        info(Measure("jobledger_build_info", "info", "Build."), {"version": 'x"y'}),
        values(COUNTER, [((odd, "t"), 10**number) for number, odd in enumerate(ODD)]),
        value(Measure("jobledger_up", "gauge", "Up."), None),
        values(Measure("jobledger_age_seconds", "gauge", "Age.", ("queue",)), [(("q",), 1e-7), (("r",), 12)]),
        histograms(HISTOGRAM, [((odd,), Distribution(BOUNDS, (1, 2, 3, 4), 1e17)) for odd in ODD]),
    )


def theirs() -> Fixed:
    """The same, made with prometheus-client alone."""
    counter = CounterMetricFamily("jobledger_jobs", "Jobs.", labels=("queue", "task"))
    for number, odd in enumerate(ODD):
        counter.add_metric((odd, "t"), float(10**number))
    histogram = HistogramMetricFamily(
        "jobledger_run_seconds", HISTOGRAM.help, labels=("queue",), unit="seconds"
    )
    for odd in ODD:
        buckets = [("0.005", 1.0), ("1.0", 2.0), ("86400.0", 3.0), ("+Inf", 4.0)]
        histogram.add_metric((odd,), buckets, 1e17)
    found = list(ours().families)
    found[1], found[4] = counter, histogram
    return Fixed(*found)


@pytest.mark.parametrize(
    ("accept", "parse", "write"),
    [
        ("application/openmetrics-text; version=1.0.0", OPEN_PARSE, OPEN_WRITE),
        ("text/plain", parse_plain, plain_text),
    ],
)
def test_a_page_says_what_prometheus_client_says(accept: str, parse: Any, write: Any) -> None:
    page = metrics_page(ours(), accept=accept, accept_encoding="").body.decode()
    found = {family.name: family for family in parse(page)}
    wanted = {family.name: family for family in parse(write(theirs()).decode())}
    assert found == wanted
    assert page.count("# EOF") == (1 if "openmetrics" in accept else 0)


def test_samples_are_there_for_whoever_looks_at_them() -> None:
    for mine, other in zip(ours().families, theirs().families, strict=True):
        assert sorted(map(repr, mine.samples)) == sorted(map(repr, other.samples))
        assert mine.samples is mine.samples
    with pytest.raises(AttributeError):
        ours().families[1].nothing  # noqa: B018
