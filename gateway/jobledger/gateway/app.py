"""The ASGI application of one gateway, put together."""

from __future__ import annotations

import functools
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from jobledger.gateway.access.keys import KeyAccess
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.endpoint import JSON
from jobledger.gateway.http.guard import Guard
from jobledger.gateway.http.head import request_id_of
from jobledger.gateway.http.openapi import openapi
from jobledger.gateway.http.reference import reference
from jobledger.gateway.http.router import Table, refusal
from jobledger.gateway.pages.dashboard import HEADERS, Dashboard, problem_page
from jobledger.gateway.pages.login import Login
from jobledger.gateway.problems import ProblemError, problem_of

DOCUMENT: Final = "/openapi.json"
REFERENCE: Final = "/docs"


def app(gateway: Gateway) -> ASGIApp:
    """Return the ASGI application of a gateway."""
    made = [
        Route(DOCUMENT, _document),
        Route(REFERENCE, _reference),
        *Dashboard(gateway).routes(),
    ]
    if isinstance(gateway.access, KeyAccess):
        made += Login(gateway.access).routes()
    pages = Starlette(routes=made, exception_handlers={404: _not_found, 405: _not_allowed})
    inner = Table(gateway, ENDPOINTS, pages)
    gate = gateway.access.gate
    return inner if gate is None else Guard(inner, gateway, gate)


@functools.cache
def _document_text() -> bytes:
    return msgspec.json.encode(openapi(ENDPOINTS))


async def _document(_request: Request) -> Response:
    return Response(_document_text(), media_type=JSON)


@functools.cache
def _reference_text() -> str:
    return reference(msgspec.json.decode(_document_text()))


async def _reference(_request: Request) -> Response:
    policy = (
        "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return HTMLResponse(_reference_text(), headers=headers)


async def _not_found(request: Request, _error: Exception) -> Response:
    request.scope["jobledger.code"] = "ENDPOINT_NOT_FOUND"
    if "text/html" in request.headers.get("accept", ""):  # a person
        error = ProblemError("ENDPOINT_NOT_FOUND", f"There is no page {request.url.path[:200]}.")
        response = problem_page(request, *problem_of(error, request_id_of(request.scope), said=str))
        response.headers.update(HEADERS)
        return response
    sentence = f"there is no address {request.url.path[:200]}: {DOCUMENT} lists those that there are"
    return refusal(ProblemError("ENDPOINT_NOT_FOUND", sentence), request_id_of(request.scope))


async def _not_allowed(request: Request, _error: Exception) -> Response:
    request.scope["jobledger.code"] = "METHOD_NOT_ALLOWED"
    sentence = f"no address takes {request.method[:20]}: use GET, POST, PUT or DELETE"
    return refusal(ProblemError("METHOD_NOT_ALLOWED", sentence), request_id_of(request.scope))
