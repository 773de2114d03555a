"""Metrics as Prometheus reads them: what one is, families of samples, and the text that a scrape gets.

Values come from whoever collects them; nothing here counts. Needs prometheus-client, so only what serves metrics
imports it.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder, generate_latest, gzip_accepted

from jobledger.ledger.meter import Histogram

Kind = Literal["counter", "gauge", "histogram", "info"]
#: What a label means when its values were too many: everything of the rest.
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


class Collected(Protocol):
    """What can be scraped: prometheus-client's collector."""

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        ...


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
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = kind(measure.family, measure.help, labels=measure.labels, unit=_unit(measure))
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def value(measure: Measure, number: float | None) -> Metric:
    """Return the family of a metric without labels; without a sample for None, which means that nobody knows."""
    return values(measure, () if number is None else (((), number),))


def histograms(measure: Measure, samples: Iterable[tuple[Sequence[str], Distribution]]) -> Metric:
    """Return the family of a histogram."""
    family = HistogramMetricFamily(measure.family, measure.help, labels=measure.labels, unit=_unit(measure))
    for labels, found in samples:
        bounds = [*(repr(float(bound)) for bound in found.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, found.counts, strict=True)), found.sum)
    return family


def info(measure: Measure, facts: Mapping[str, str]) -> Metric:
    """Return the family of an info: one sample of value 1 that carries `facts` as labels."""
    family = InfoMetricFamily(measure.family, measure.help, labels=())
    family.add_metric((), dict(facts))
    return family


def _unit(measure: Measure) -> str:
    return next((unit for unit in _UNITS if measure.family.endswith(f"_{unit}")), "")


class _Fixed:
    """Families that are collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to one request."""

    status: int
    content_type: str
    body: bytes
    is_gzip: bool = False


def metrics_page(collected: Collected, *, accept: str, accept_encoding: str) -> Page:
    """Return a scrape in the format that `accept` asks for: OpenMetrics or Prometheus text, packed if that is fine."""
    families = _Fixed(collected.collect())
    try:
        encode, content_type = choose_encoder(accept)
        body = encode(families)
    except (ValueError, TypeError, IndexError):  # a header that nobody can read asks for nothing
        encode, content_type = generate_latest, "text/plain; version=0.0.4; charset=utf-8"
        body = encode(families)
    packed = gzip_accepted(accept_encoding)
    return Page(
        status=200,
        content_type=content_type,
        body=gzip.compress(body, compresslevel=1) if packed else body,
        is_gzip=packed,
    )


def text_page(status: int, text: str) -> Page:
    """Return a page of one sentence."""
    return Page(status=status, content_type="text/plain; charset=utf-8", body=f"{text}\n".encode())
