"""Metrics as Prometheus reads them: their declaration, and families made of values that others counted.

prometheus-client writes the text. So only what serves metrics imports this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector

from jobledger.ledger.nats.append_stats import Histogram

Kind = Literal["counter", "gauge", "histogram", "info"]
#: The value of a label that stands for all the rest, where there are too many.
OTHER: Final = "(other)"
_UNITS: Final = ("seconds", "bytes")


class Measure(msgspec.Struct, frozen=True):
    """One metric: its name as documented, its kind, its labels, and its sentence."""

    name: str  #: as it is queried: counters end in `_total`, an info in `_info`; a histogram has no suffix
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name without the suffix that the exposition adds."""
        return self.name.removesuffix("_total" if self.kind == "counter" else "_info")

    @property
    def unit(self) -> str:
        """The unit that the name ends with, "" for a mere number."""
        return next((unit for unit in _UNITS if self.family.endswith(f"_{unit}")), "")


Sample = tuple[Sequence[str], float]


class Distribution(msgspec.Struct, frozen=True):
    """A histogram as it is shown."""

    bounds: Sequence[float]
    counts: Sequence[int]  #: per bound how many were at most that much, and at the end all of them
    sum: float

    @classmethod
    def of(cls, histogram: Histogram) -> Distribution:
        """Return a histogram as it is now."""
        return cls(histogram.bounds, tuple(itertools.accumulate(histogram.counts)), histogram.sum)


def values(measure: Measure, samples: Iterable[Sample]) -> Metric:
    """Return the family of a counter or gauge; each sample has the labels' values in their order."""
    made = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = made(measure.family, measure.help, labels=measure.labels, unit=measure.unit)
    for labels, number in samples:
        family.add_metric(labels, number)
    return family


def value(measure: Measure, number: float | None) -> Metric:
    """Return the family of a metric without labels; without a sample for None, which means that nobody knows."""
    return values(measure, () if number is None else (((), number),))


def histograms(measure: Measure, samples: Iterable[tuple[Sequence[str], Distribution]]) -> Metric:
    """Return the family of a histogram."""
    family = HistogramMetricFamily(measure.family, measure.help, labels=measure.labels, unit=measure.unit)
    for labels, found in samples:
        bounds = (*(str(float(bound)) for bound in found.bounds), "+Inf")
        family.add_metric(labels, list(zip(bounds, found.counts, strict=True)), found.sum)
    return family


def info(measure: Measure, facts: Mapping[str, str]) -> Metric:
    """Return the family of an info: one sample of value 1 that carries `facts` as labels."""
    family = InfoMetricFamily(measure.family, measure.help, labels=())
    family.add_metric((), dict(facts))
    return family


def scrape(collected: Collector, accept: str) -> tuple[str, bytes]:
    """Return content type and text of a scrape in the format that `accept` asks for: OpenMetrics or Prometheus text."""
    try:
        encode, content_type = choose_encoder(accept)
    except (ValueError, TypeError, IndexError):  # a header that nobody can read asks for nothing
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return content_type, encode(collected)
