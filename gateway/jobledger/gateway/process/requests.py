"""Every request from its first byte to its last: limits, counters, the access log, and uncaught errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobledger.gateway.http.head import added_headers, request_id_of
from jobledger.gateway.http.router import refusal
from jobledger.gateway.life import Life
from jobledger.gateway.problems import ProblemError, code_of
from jobledger.gateway.process.access_log import AccessLog
from jobledger.gateway.process.bodies import body_of
from jobledger.gateway.process.counters import Counters

#: Appends in flight at once: more than all uploads may have together, so that other requests find room.
APPENDS_MAX: Final = 2_048
BULK_APPENDS_MAX: Final = 500  #: appends in flight of one upload
#: How long a request waits for a NATS server that does not answer. Workers wait longer.
SILENT_S_MAX: Final = 10.0
#: How long a request waits until the ledger has room.
_PATIENCE_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.005
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PATH_SHOWN_MAX: Final = 200
_log: Final = logging.getLogger("jobledger.gateway")


#: Headers of every answer that does not set them itself: no cache keeps it, and no browser guesses its type.
_GUARDS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


def _complete(head: Message, scope: Scope) -> None:
    """Add the headers of every answer to a head."""
    headers = [*head.get("headers", ()), *added_headers(scope)]
    said = {name for name, _ in headers}
    headers += [pair for pair in _GUARDS if pair[0] not in said]
    head["headers"] = headers


class Requests:
    """The outermost part of the application. `appends` returns the number of appends in flight."""

    def __init__(
        self, app: ASGIApp, life: Life, counted: Counters, *, body_bytes_max: int, appends: Callable[[], int]
    ) -> None:
        self._app = app
        self._life = life
        self._counted = counted
        self._body_bytes_max = body_bytes_max
        self._appends = appends
        self.log = AccessLog()  #: to be closed when this process ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        counted, began, status = self._counted, time.monotonic(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _complete(message, scope)
            await send(message)

        counted.in_flight += 1
        try:
            await self._answer(scope, receive, sent, lambda: status)
        finally:
            counted.in_flight -= 1
            _note(counted, self.log, scope, status, time.monotonic() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, status: Callable[[], int]) -> None:
        body = body_of(scope, receive, send, self._body_bytes_max)
        if body is not None:
            receive, send = body.receive, body.send
        try:
            if body is not None:
                body.check_length()
            await self._admit(scope)
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if status() or not self._life.stopping.is_set():
                raise
            await _refuse(
                ProblemError("BUSY", "this gateway is stopping: ask again, and another one answers"),
                scope,
                receive,
                send,
            )
        except Exception as error:  # an uncaught error gets an answer in the usual form
            if status():
                _log.error("an answer broke off", exc_info=error if code_of(error) == "INTERNAL" else None)
                raise
            await _refuse(error, scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Wait a short time for room for the appends of a request. Raises: ProblemError (LEDGER_BUSY)."""
        if scope["method"] in _SAFE or self._appends() < APPENDS_MAX:
            return
        give_up_at = time.monotonic() + _PATIENCE_S
        while self._appends() >= APPENDS_MAX:
            if time.monotonic() >= give_up_at:
                raise ProblemError(
                    "LEDGER_BUSY", f"{APPENDS_MAX:,} events wait to be stored already: try again in a moment"
                )
            await asyncio.sleep(_LOOK_EVERY_S)


async def _refuse(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    scope["jobledger.code"] = code_of(error)
    await refusal(error, request_id_of(scope))(scope, receive, send)


def _note(counted: Counters, log: AccessLog, scope: Scope, status: int, seconds: float) -> None:
    """Count a request and log it: caller, address and outcome; no values and no secrets."""
    route = getattr(scope.get("route"), "path", None)
    method = scope["method"]
    counted.answered(route, method, status, seconds)
    code = scope.get("jobledger.code")
    if code is not None:
        counted.refused(code)
    if not log.is_on:
        return
    principal = scope.get("jobledger.principal")
    log.add(
        {
            "request": request_id_of(scope),
            "key": "nobody" if principal is None else principal.key_id or principal.name,
            "method": method[:_PATH_SHOWN_MAX],
            # The path as it was sent, so without control characters; for a path with a secret only the pattern.
            "path": route
            if route and "{token" in route
            else scope["raw_path"].decode("latin-1")[:_PATH_SHOWN_MAX],
            "status": status,
            "ms": int(seconds * 10_000 + 0.5) / 10,  # `round` takes half a microsecond
        }
    )
