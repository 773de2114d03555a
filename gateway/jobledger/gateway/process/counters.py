"""Counters of one gateway process about its requests, for Prometheus; the projection counts jobs and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric

from jobledger.gateway.shares import KINDS, Shares
from jobledger.ledger.metrics.exposition import Distribution, Measure, histograms, info, value, values
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.append_stats import LATENCY_BOUNDS_S, Histogram

#: Labels for an unknown address and for an unknown method: a label must have few values.
NO_ROUTE: Final = "(none)"
OTHER_METHOD: Final = "(other)"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

_BUILD = Measure("jobledger_gateway_build_info", "info", "Version of this gateway process.")
_REQUESTS = Measure(
    "jobledger_gateway_requests_total",
    "counter",
    "Answered requests, by the address as the API declares it.",
    ("route", "method", "status"),
)
_SECONDS = Measure(
    "jobledger_gateway_request_seconds",
    "histogram",
    "From a request's headers to the end of its answer.",
    ("route",),
)
_IN_FLIGHT = Measure(
    "jobledger_gateway_requests_in_flight", "gauge", "Requests that are being answered, streams included."
)
_OPEN = Measure(
    "jobledger_gateway_open",
    "gauge",
    "What is open, by kind: requests, requests without a key, waits, streams, connections and others.",
    ("kind",),
)
_SHARES = Measure(
    "jobledger_gateway_share_refusals_total",
    "counter",
    "Times that somebody was refused who had, or all together had, too much of a kind open.",
    ("kind",),
)
_REFUSALS = Measure(
    "jobledger_gateway_refusals_total",
    "counter",
    "Requests that were not done, by the code of the answer.",
    ("code",),
)
_APPENDS = Measure(
    "jobledger_gateway_appends_in_flight", "gauge", "Appends to the ledger that are on their way."
)
_LAG = Measure(
    "jobledger_gateway_loop_lag_seconds", "histogram", "How late the event loop woke a timer, every 0.25 s."
)
_RESTARTS = Measure(
    "jobledger_gateway_child_ends_total",
    "counter",
    "Child processes that ended by themselves, by what they do.",
    ("child",),
)

#: All metrics of a gateway's `/metrics` that the exporter's does not have.
GATEWAY_METRICS: Final = (
    _BUILD,
    _REQUESTS,
    _SECONDS,
    _IN_FLIGHT,
    _OPEN,
    _REFUSALS,
    _SHARES,
    _APPENDS,
    _LAG,
    _RESTARTS,
)


class Counters:
    """The counters; changed on the event loop, read from any thread."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests: dict[tuple[str, str, str], int] = {}  #: requests by route, method and status
        self.seconds: dict[str, Histogram] = {}  #: by route
        self.refusals: dict[str, int] = {}  #: refusals by code
        self.child_ends: dict[str, int] = {}  #: ended children by program

    def answered(self, route: str | None, method: str, status: int, seconds: float) -> None:
        """Count a request; `route`: the address as declared, None for an unknown address."""
        name = NO_ROUTE if route is None else route
        key = (name, method if method in _METHODS else OTHER_METHOD, str(status))
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.seconds.get(name)
        if histogram is None:
            histogram = self.seconds[name] = Histogram(LATENCY_BOUNDS_S)
        histogram.observe(seconds)

    def refused(self, code: str) -> None:
        """Count a refused request."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def child_ended(self, program: str) -> None:
        """Count a child that ended by itself."""
        self.child_ends[program] = self.child_ends.get(program, 0) + 1


class GatewayCollector:
    """The collector of one gateway process's metrics; any thread may call `collect`."""

    def __init__(
        self,
        counted: Counters,
        late_s: Histogram,
        *,
        shares: Shares,
        appends: Callable[[], int],
    ) -> None:
        """`late_s`: how late the event loop was; `appends`: returns the number of appends in flight."""
        self._counted = counted
        self._shares = shares
        self._late_s = late_s
        self._appends = appends

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        counted = self._counted
        yield info(_BUILD, {"version": VERSION})
        yield values(_REQUESTS, [(key, float(number)) for key, number in list(counted.requests.items())])
        yield histograms(
            _SECONDS, [((route,), Distribution.of(found)) for route, found in list(counted.seconds.items())]
        )
        yield value(_IN_FLIGHT, float(counted.in_flight))
        yield values(_OPEN, [((kind,), float(self._shares.open[kind])) for kind in KINDS])
        yield values(_REFUSALS, [((code,), float(number)) for code, number in list(counted.refusals.items())])
        yield values(_SHARES, [((kind,), float(self._shares.refused[kind])) for kind in KINDS])
        yield value(_APPENDS, float(self._appends()))
        yield histograms(_LAG, [((), Distribution.of(self._late_s))])
        yield values(
            _RESTARTS, [((name,), float(number)) for name, number in list(counted.child_ends.items())]
        )
