"""The gate as a part of the application: it refuses a request, or notes the caller in its scope and hands it on.

It also counts a request in the share of its caller, and ends long answers (streams of events) as soon as their caller
is no longer let in.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobledger.gateway.access.gate import ArrivedRequest, Gate
from jobledger.gateway.access.identity import ADMITTED, CALLER, UNSURE, AdmittedPerson
from jobledger.gateway.access.origins import SAFE
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.head import added_headers, headers_of, request_id_of
from jobledger.gateway.http.router import refusal
from jobledger.gateway.problems import ProblemError, code_of
from jobledger.gateway.shares import Asker, network_of

_FAILED: Final = 500
_API: Final = "/v1/"
#: Paths that are answered even if all shares are used: load balancers decide by them whether to send more requests.
_ALWAYS: Final = frozenset({"/healthz", "/readyz"})
#: While revoked keys are not known, a request of the API waits this long: an election may end, or another server be
#: found. Clients wait for ten seconds, ours too.
_SURE_WITHIN_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.1
#: The number of requests that may wait so at the same time; further ones are refused at once.
_WAITING_MAX: Final = 100


class Guard:
    """Stands before an application."""

    def __init__(self, app: ASGIApp, gateway: Gateway, gate: Gate) -> None:
        """`app`: the application behind the gate."""
        self._app = app
        self._gateway = gateway
        self._gate = gate
        self._visits: set[_Visit] = set()
        self._waiting = 0
        gate.on_sweep(self._sweep)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            arrived = await self._enter(scope)
        except ProblemError as error:
            await _refuse(error, scope, receive, send)
            return
        if arrived is None:
            await _preflight(send)
            return
        scope["scheme"] = arrived.scheme
        if arrived.client != arrived.caller.peer:
            scope["client"] = (arrived.client, 0)
        scope[CALLER], scope[ADMITTED] = arrived.caller, arrived.who
        if isinstance(arrived.who, AdmittedPerson):
            scope["jobledger.principal"] = arrived.who.principal
        if scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
            return
        asker = self._asker(arrived)
        try:
            asker.begin()
        except ProblemError as error:
            await _refuse(error, scope, receive, send)
            return
        try:
            if isinstance(arrived.who, AdmittedPerson):
                await self._watched(arrived.who, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            asker.end()

    async def _enter(self, scope: Scope) -> ArrivedRequest | None:
        """Return the request with its caller, after waiting for the keys if they are not known; None for a preflight.

        Raises: as `Gate.enter`.
        """
        headers, added = headers_of(scope), added_headers(scope)
        before = len(added)
        arrived = self._gate.enter(scope, headers, added)
        if not _is_unsure(arrived) or not scope["path"].startswith(_API) or self._waiting >= _WAITING_MAX:
            return arrived
        self._waiting += 1
        try:
            for _ in range(round(_SURE_WITHIN_S / _LOOK_EVERY_S)):
                await asyncio.sleep(_LOOK_EVERY_S)
                del added[before:]
                arrived = self._gate.enter(scope, headers, added)
                if not _is_unsure(arrived):
                    break
        finally:
            self._waiting -= 1
        return arrived

    def _asker(self, arrived: ArrivedRequest) -> Asker:
        """Return the asker whose share a request takes: for an unidentified caller, its network address."""
        shares, who = self._gateway.shares, arrived.who
        if not isinstance(who, AdmittedPerson):
            network = network_of(arrived.client)
            return Asker(shares, network, named=f"the address {network}", kind="anonymous")
        principal = who.principal
        whose = principal.key_id or principal.name
        return Asker(shares, whose, named=principal.name, is_bound=who.is_counted)

    async def _watched(self, admitted: AdmittedPerson, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a caller for as long as they are let in.

        After that a stream ends, an answer that has not begun becomes a refusal, and no more of the body is read. While
        the keys are not known, a request that may have acted still gets its own answer.
        """
        visit = _Visit(admitted, scope, receive, send)
        self._visits.add(visit)
        try:
            await self._app(scope, visit.receive, visit.send)
        except asyncio.CancelledError:
            if not visit.is_cut:
                raise  # another cancellation: the process stops, or the client is gone
            visit.task.uncancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._visits.discard(visit)

    def _sweep(self) -> None:
        """End the visits of callers who are no longer let in. Each caller is checked once for all their visits."""
        refused: dict[AdmittedPerson, ProblemError | None] = {}
        for visit in list(self._visits):
            who = visit.admitted
            if who not in refused:
                refused[who] = self._gate.refused_since(who)
            visit.refused = refused[who]
            if visit.refused is not None:
                visit.end_stream()


class _Visit:
    """A request of an admitted caller, while it is answered."""

    def __init__(self, admitted: AdmittedPerson, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are answered by tasks"
        self.task = task
        self.admitted = admitted
        #: The refusal of a caller who is no longer let in, or about whom this is not known; None for others.
        self.refused: ProblemError | None = None
        self.is_cut = False  #: True once its long answer is being ended
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_refused = False
        self._goes_on = False

    def end_stream(self) -> None:
        """End an answer that has begun and is not complete."""
        if self._goes_on and not self.is_cut:
            self.is_cut = True
            self.task.cancel("the key ended")

    async def receive(self) -> Message:
        """Return a part of the body. Raises: ProblemError (UNAUTHENTICATED, LEDGER_UNREACHABLE)."""
        message = await self._receive()
        if self.refused is not None:
            raise self.refused
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, or the refusal in its place."""
        if self.refused is not None and not self._has_acted(self.refused):
            # An answer with status 500 or above is sent as it is: it holds nothing of the ledger.
            if message["type"] == "http.response.start" and message["status"] < _FAILED:
                self._is_refused = True
                await _refuse(self.refused, self._scope, self._receive, self._send)
            if self._is_refused:
                return
        if message.get("more_body"):
            self._goes_on = True
        await self._send(message)

    def _has_acted(self, refused: ProblemError) -> bool:
        """Return whether the answer may report an act of a caller about whom only the present rights are unknown."""
        return refused.code == UNSURE and self._scope["method"] not in SAFE


def _is_unsure(arrived: ArrivedRequest | None) -> bool:
    return arrived is not None and isinstance(arrived.who, ProblemError) and arrived.who.code == UNSURE


async def _refuse(error: ProblemError, scope: Scope, receive: Receive, send: Send) -> None:
    scope["jobledger.code"] = code_of(error)
    await refusal(error, request_id_of(scope))(scope, receive, send)


async def _preflight(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
