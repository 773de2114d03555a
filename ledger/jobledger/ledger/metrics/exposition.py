"""Metrics as Prometheus reads them: what one is, families of samples, and the text that a scrape gets.

Values come from whoever collects them; nothing here counts. Needs prometheus-client, so only what serves metrics
imports it.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, generate_latest, gzip_accepted
from prometheus_client.samples import Sample as ClientSample

from jobledger.ledger.nats.append_stats import Histogram

Kind = Literal["counter", "gauge", "histogram", "info"]
#: What a label means when its values were too many: everything of the rest.
OTHER: Final = "(other)"
_UNITS: Final = ("seconds", "bytes")
_END: Final = b"# EOF\n"  # of a page of OpenMetrics
_BEGINNINGS_MAX: Final = 32_768  #: rows of which text is kept, some MB; 200 tasks make 13,000


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


class Together:
    """Several collectors of one process as one, each with what tells whether it is well; no two have the same metric."""

    def __init__(self, *parts: tuple[Collected, Callable[[], str]]) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        """Return the families of all, in their order."""
        return itertools.chain.from_iterable(collected.collect() for collected, _ in self._parts)

    def health(self) -> str:
        """Return "" when all are well, else what the first that is not says."""
        return next((reason for _, health in self._parts if (reason := health())), "")


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


class Table(Metric):
    """A family of many samples: written at once for a page, and made one by one only for who looks at `samples`."""

    def __init__(self, measure: Measure, rows: Iterable[tuple[Sequence[str], float | Distribution]]) -> None:
        super().__init__(measure.family, measure.help, measure.kind, _unit(measure))
        self._rows = list(rows)
        self._suffix = "_total" if measure.kind == "counter" else ""
        self._labels = measure.labels
        del self.samples  # until somebody looks at it

    def __getattr__(self, name: str) -> list[ClientSample]:
        """Make the samples as prometheus-client has them, when they are first looked at."""
        if name != "samples":
            raise AttributeError(name)
        self.samples = [sample for labels, found in self._rows for sample in self._samples(labels, found)]
        return self.samples

    def _samples(self, labels: Sequence[str], found: float | Distribution) -> Iterator[ClientSample]:
        named = dict(zip(self._labels, labels, strict=True))
        if not isinstance(found, Distribution):
            yield ClientSample(f"{self.name}{self._suffix}", named, float(found))
            return
        for bound, count in zip(_bounds(tuple(found.bounds)), found.counts, strict=True):
            yield ClientSample(f"{self.name}_bucket", {**named, "le": bound}, float(count))
        yield ClientSample(f"{self.name}_count", named, float(found.counts[-1]))
        yield ClientSample(f"{self.name}_sum", named, float(found.sum))

    def lines(self) -> Iterator[str]:
        """Return a line for each sample, without its end; both formats write them alike."""
        for labels, found in self._rows:
            key = (self.name + self._suffix, self._labels, tuple(labels))
            if not isinstance(found, Distribution):
                yield f"{_beginnings(*key, None)[0]} {_number(found)}"
                continue
            *buckets, count, total = _beginnings(*key, tuple(found.bounds))
            for beginning, number in zip(buckets, found.counts, strict=True):
                yield f"{beginning} {number}.0"
            yield f"{count} {found.counts[-1]}.0"
            yield f"{total} {_number(found.sum)}"


@functools.lru_cache(maxsize=16)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


@functools.lru_cache(maxsize=_BEGINNINGS_MAX)
def _beginnings(
    name: str, labels: tuple[str, ...], found: tuple[str, ...], bounds: tuple[float, ...] | None
) -> tuple[str, ...]:
    """Return what stands before the numbers of one row, which is most of the work and the same in every scrape."""
    named = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, found, strict=True)]
    own = f"{{{','.join(named)}}}" if named else ""
    if bounds is None:
        return (f"{name}{own}",)
    before = "".join(f"{each}," for each in named)
    buckets = (f'{name}_bucket{{{before}le="{bound}"}}' for bound in _bounds(bounds))
    return (*buckets, f"{name}_count{own}", f"{name}_sum{own}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(number: float) -> str:
    number = float(number)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def values(measure: Measure, samples: Iterable[Sample]) -> Metric:
    """Return the family of a counter or gauge; each sample has the labels' values in their order."""
    return Table(measure, samples)


def value(measure: Measure, number: float | None) -> Metric:
    """Return the family of a metric without labels; without a sample for None, which means that nobody knows."""
    return values(measure, () if number is None else (((), number),))


def histograms(measure: Measure, samples: Iterable[tuple[Sequence[str], Distribution]]) -> Metric:
    """Return the family of a histogram."""
    return Table(measure, samples)


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


_Encode = Callable[[Any], bytes]


def _written(families: Iterable[Metric], encode: _Encode) -> bytes:
    """Return all families as text: what stands around samples, and samples of others, as prometheus-client writes it."""
    parts: list[bytes] = []
    for family in families:
        if isinstance(family, Table):
            head = Metric(family.name, family.documentation, family.type, family.unit)
            parts.append(encode(_Fixed([head])).removesuffix(_END))
            parts.extend(f"{line}\n".encode() for line in family.lines())
        else:
            parts.append(encode(_Fixed([family])).removesuffix(_END))
    if encode(_Fixed(())).endswith(_END):
        parts.append(_END)
    return b"".join(parts)


def metrics_page(collected: Collected, *, accept: str, accept_encoding: str) -> Page:
    """Return a scrape in the format that `accept` asks for: OpenMetrics or Prometheus text, packed if that is fine."""
    families = list(collected.collect())
    try:
        encode, content_type = choose_encoder(accept)
        body = _written(families, encode)
    except (ValueError, TypeError, IndexError):  # a header that nobody can read asks for nothing
        encode, content_type = generate_latest, "text/plain; version=0.0.4; charset=utf-8"
        body = _written(families, encode)
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
