"""The small HTTP server of metrics: formats, health, the token, and clients that are slow, many or rude."""

from __future__ import annotations

import gzip
import http.client
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from tests.support.limits import LIMIT_S

from jobledger.ledger.metrics import server as metrics_server
from jobledger.ledger.metrics.exposition import Distribution, Measure, histograms, info, value, values
from jobledger.ledger.metrics.server import MetricsServer, read_token
from jobledger.ledger.model.errors import ConfigurationError, PortInUseError
from jobledger.ledger.nats.append_stats import Histogram

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TOKEN = b"0123456789abcdef"


class Figures:
    """Every kind of metric, with values that are awkward to write."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def collect(self) -> Iterable[Metric]:
        self._before()
        sizes = Histogram((1.0, 10.0))
        for size in (1, 5, 100):
            sizes.observe(size)
        yield info(Measure("t_build_info", "info", "Version."), {"version": "1"})
        yield values(
            Measure("t_jobs_total", "counter", "Jobs.", ("queue",)), [(['q"\\\n'], 3.0), (["(other)"], 2**53)]
        )
        yield value(Measure("t_age_seconds", "gauge", "Age."), 0.25)
        yield value(Measure("t_unknown", "gauge", "Nobody knows."), None)
        yield histograms(Measure("t_size_bytes", "histogram", "Sizes."), [((), Distribution.of(sizes))])


def _ask(
    server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        link.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = link.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        link.close()


def test_both_formats_are_understood_by_prometheus_own_parsers() -> None:
    with MetricsServer(Figures(), lambda: "") as server:
        status, headers, body = _ask(server, Accept=OPENMETRICS, Accept_Encoding="gzip")
        assert (status, headers["Content-Encoding"]) == (200, "gzip")
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        new = {
            (each.name, *each.labels.values()): each.value
            for family in openmetrics_parser.text_string_to_metric_families(  # type: ignore[no-untyped-call]
                gzip.decompress(body).decode()
            )
            for each in family.samples
        }
        status, headers, body = _ask(server)
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        old = {
            (each.name, *each.labels.values()): each.value
            for family in text_parser.text_string_to_metric_families(body.decode())
            for each in family.samples
        }
    assert new == old
    assert new["t_jobs_total", 'q"\\\n'] == 3
    assert new["t_jobs_total", "(other)"] == 2**53
    assert (new["t_size_bytes_bucket", "1.0"], new["t_size_bytes_bucket", "+Inf"]) == (1, 3)
    assert (new["t_size_bytes_count",], new["t_size_bytes_sum",]) == (3, 106)
    assert ("t_unknown",) not in new


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain;version=", "*/*", ";,="]
)
def test_a_header_that_nobody_can_read_gets_plain_text(accept: str) -> None:
    with MetricsServer(Figures(), lambda: "") as server:
        status, _, body = _ask(server, Accept=accept)
    assert status == 200
    assert b"t_age_seconds 0.25" in body


def test_health_is_red_with_its_reason_and_other_pages_and_verbs_are_refused() -> None:
    reasons = ["the server does not answer", ""]
    with MetricsServer(Figures(), lambda: reasons.pop(0)) as server:
        assert _ask(server, "/healthz")[::2] == (503, b"the server does not answer\n")
        assert _ask(server, "/healthz")[::2] == (200, b"ok\n")
        assert _ask(server, "/metrics?name[]=t_jobs")[0] == 200
        assert _ask(server, "/../etc/passwd")[0] == 404
        assert _ask(server, method="POST")[0] == 501


def test_without_the_token_nothing_is_told() -> None:
    with MetricsServer(Figures(), lambda: "", token=TOKEN) as server:
        for path in ("/metrics", "/healthz", "/nothing"):
            for given in (
                {},
                {"Authorization": f"Bearer {TOKEN.decode()}0"},
                {"Authorization": TOKEN.decode()},
            ):
                status, headers, body = _ask(server, path, **given)
                assert (status, b"t_jobs" in body) == (401, False)
                assert headers["WWW-Authenticate"].startswith("Bearer")
        assert _ask(server, Authorization=f"Bearer {TOKEN.decode()}")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "no such host", ""])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigurationError):
        MetricsServer(Figures(), lambda: "", host=host)


@pytest.mark.parametrize("content", [b"", b"short", b"0123456789abcde\xff0", b"two words that are long"])
def test_a_token_that_guards_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="must hold one token"):
        read_token(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_token(tmp_path / "missing")
    path.write_bytes(TOKEN + b"\n")
    assert read_token(path) == TOKEN


def test_a_port_in_use_is_said_so() -> None:
    with (
        MetricsServer(Figures(), lambda: "") as server,
        pytest.raises(PortInUseError, match=str(server.port)),
    ):
        MetricsServer(Figures(), lambda: "", port=server.port)


def _link(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)


def test_slow_clients_are_cut_off_and_hang_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 2 * LIMIT_S)
    with MetricsServer(Figures(), lambda: "") as server:
        slow = [_link(server) for _ in range(metrics_server.REQUESTS_MAX - 1)]
        for each in slow:
            each.send(b"GET /metrics HTTP/1.1\r\nX: ")
        assert _ask(server)[0] == 200
        one_too_many = [_link(server) for _ in range(2)]
        told, _, _ = select.select(one_too_many, [], [], LIMIT_S)  # the other one has the last place
        assert any(each.recv(100).startswith(b"HTTP/1.0 503") for each in told)
        for each in (*slow, *one_too_many):
            each.close()
        _until(lambda: _ask(server)[0] == 200)
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.5)
    with MetricsServer(Figures(), lambda: "") as server:
        slow = [_link(server) for _ in range(metrics_server.REQUESTS_MAX - 1)]
        for each in slow:
            each.send(b"GET /metrics HTTP/1.1\r\nX: ")
        for each in slow:
            assert each.recv(100) == b""  # within the limit of the test, though nothing more was sent
            each.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_collector_that_hangs_or_fails_leaves_the_server_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_COLLECT_S", 0.2)
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)
        raise ValueError("no figures today")

    with MetricsServer(Figures(hang), lambda: "") as server:
        found: list[int] = []
        first = threading.Thread(target=lambda: found.append(_ask(server)[0]))
        first.start()
        assert begun.wait(LIMIT_S)
        assert _ask(server)[::2] == (503, b"another scrape has not ended yet\n")
        assert _ask(server, "/healthz")[0] == 200
        go_on.set()
        first.join(LIMIT_S)
        assert found == [500]
        assert _ask(server, "/healthz")[0] == 200
