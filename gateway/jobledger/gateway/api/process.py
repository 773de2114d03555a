"""Health and metrics of this gateway process, for load balancers and Prometheus."""

from __future__ import annotations

from typing import Final

from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Endpoint, Raw
from jobledger.gateway.problems import ProblemError

_TEXT: Final = "text/plain; charset=utf-8"


async def healthz(_asked: ApiRequest) -> Raw:
    """Say that the process answers; check nothing else."""
    return Raw(data=b"ok\n", media=_TEXT)


async def readyz(asked: ApiRequest) -> Raw:
    """Say whether this process should get requests: it is connected, not behind, and not stopping."""
    reason = "" if asked.gateway.health is None else await asked.gateway.health.why_not_ready()
    if reason:
        raise ProblemError("NOT_READY", reason)
    return Raw(data=b"ok\n", media=_TEXT)


async def metrics(asked: ApiRequest) -> Raw:
    """Show the metrics of the ledger and of this process, in OpenMetrics or Prometheus' text format."""
    asked.principal.require_everywhere("view")  # they name every queue and task
    if asked.gateway.health is None:
        return Raw(data=b"", media=_TEXT)
    media, text = await asked.gateway.health.scrape(asked.header("accept"))
    return Raw(data=text, media=media)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/healthz",
        permission=None,
        public=True,
        handler=healthz,
        summary="Say that the process answers",
        tag="process",
        returns=str,
        gives="text/plain",
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        permission=None,
        public=True,
        handler=readyz,
        summary="Say whether requests are to come here",
        tag="process",
        returns=str,
        gives="text/plain",
        problems=("NOT_READY", "INTERNAL"),
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        permission="view",
        handler=metrics,
        summary="Show the metrics of the ledger and of this process",
        tag="process",
        returns=str,
        gives="text/plain",
    ),
)
