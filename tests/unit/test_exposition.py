"""What a measure and its values become in a scrape; the server's tests read whole pages."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from jobledger.ledger.metrics.exposition import (
    Distribution,
    Measure,
    histograms,
    info,
    scrape,
    value,
    values,
)
from jobledger.ledger.nats.append_stats import Histogram

# Without types in the library.
OPEN_PARSE: Any = open_parser.text_string_to_metric_families  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
ODD = ('a"b', "a\\b", "a\nb", "ü\u2028{}", "", "a,b=c")
COUNTER = Measure("jobledger_jobs_total", "counter", "Jobs.", ("queue", "task"))
GAUGE = Measure("jobledger_age_seconds", "gauge", "Age.", ("queue",))
HISTOGRAM = Measure("jobledger_run_seconds", "histogram", 'Runs, "quoted".', ("queue",))
Seen = tuple[str, tuple[str, ...], float]
#: Family, type and unit, then sample, labels in the order of their names and value.
WANTED: list[tuple[str, str, str, set[Seen]]] = [
    (
        "jobledger_jobs",
        *("counter", ""),
        {("jobledger_jobs_total", (odd, "t"), 10.0**number) for number, odd in enumerate(ODD)},
    ),
    (
        "jobledger_age_seconds",
        *("gauge", "seconds"),
        {("jobledger_age_seconds", ("q",), 1e-7), ("jobledger_age_seconds", ("r",), 12.0)},
    ),
    ("jobledger_up", "gauge", "", set()),
    ("jobledger_build", "info", "", {("jobledger_build_info", ('x"y',), 1.0)}),
    (
        "jobledger_run_seconds",
        *("histogram", "seconds"),
        {
            ("jobledger_run_seconds_bucket", ("0.005", "q"), 1.0),
            ("jobledger_run_seconds_bucket", ("86400.0", "q"), 2.0),
            ("jobledger_run_seconds_bucket", ("+Inf", "q"), 4.0),
            ("jobledger_run_seconds_count", ("q",), 4.0),
            ("jobledger_run_seconds_sum", ("q",), 1e17),
        },
    ),
]


class Collected:
    """Families that somebody collected."""

    def collect(self) -> list[Metric]:
        return [
            values(COUNTER, [((odd, "t"), 10**number) for number, odd in enumerate(ODD)]),
            values(GAUGE, [(("q",), 1e-7), (("r",), 12)]),
            value(Measure("jobledger_up", "gauge", "Up."), None),
            info(Measure("jobledger_build_info", "info", "Build."), {"version": 'x"y'}),
            histograms(HISTOGRAM, [(("q",), Distribution((0.005, 86_400), (1, 2, 4), 1e17))]),
        ]


def _samples(family: Any) -> set[Seen]:
    return {
        (each.name, tuple(text for _, text in sorted(each.labels.items())), each.value)
        for each in family.samples
    }


def test_a_measure_becomes_a_family_with_its_unit() -> None:
    found = [(each.name, each.type, each.unit, _samples(each)) for each in Collected().collect()]
    assert found == WANTED


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", OPEN_PARSE),
        ("text/plain", "text/plain", parse_plain),
        ("application/openmetrics-text; version=nonsense", "text/plain", parse_plain),
    ],
)
def test_a_scrape_says_in_both_formats_what_was_collected(accept: str, content_type: str, parse: Any) -> None:
    said, text = scrape(Collected(), accept)
    assert said.startswith(content_type)
    found = {sample for family in parse(text.decode()) for sample in _samples(family)}
    assert found == {sample for *_, samples in WANTED for sample in samples}


def test_a_histogram_is_shown_with_cumulative_counts() -> None:
    found = Histogram((1.0, 10.0))
    for number in (1, 5, 6, 100):
        found.observe(number)
    assert Distribution.of(found) == Distribution((1.0, 10.0), (1, 3, 4), 112)
