"""The request as a handler gets it beside its arguments: the caller and the headers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import anyio
import msgspec
from starlette.requests import Request

from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.head import headers_of
from jobledger.gateway.http.headers import KEY_LENGTH_MAX, WAIT_MAX_S, Header
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.shares import opened
from jobledger.ledger.model.inputs import traceparent_in
from jobledger.ledger.model.rights.authority import Principal

_DIGITS_MAX: Final = 19  #: digits of the highest sequence that the server can count to


class ApiRequest:
    """One request, as handlers see it."""

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        principal: Principal,
        request_id: str,
        heeds: tuple[Header, ...] = (),
    ) -> None:
        self.gateway = gateway
        self.principal = principal
        self.request_id = request_id
        self._heeds = heeds
        self._headers = headers_of(request.scope)
        self.sent = b""  #: the raw body, if the endpoint takes a structure
        self.request = request  #: for the few handlers that read a body in parts

    def header(self, name: str) -> str:
        """Return a header by its name in lower case, "" without it."""
        return self._headers.get(name, "")

    def heeded(self, name: Header) -> str:
        """Return a header that the endpoint declares in `heeds`, "" without it."""
        assert name in self._heeds, f"the endpoint does not declare that it heeds {name}"
        return self.header(name.lower())

    @property
    def trace(self) -> str:
        """The W3C traceparent of the request, "" without one that is valid."""
        return traceparent_in(self.header("traceparent"))

    @property
    def idempotency_key(self) -> str:
        """The key that names the job to be made, "" without one. Raises: ProblemError."""
        given = self.heeded("Idempotency-Key")
        if len(given) > KEY_LENGTH_MAX:
            raise ProblemError(
                "BAD_REQUEST", f"Idempotency-Key has {len(given)} characters: give at most {KEY_LENGTH_MAX}"
            )
        return given

    @property
    def authority(self) -> Principal:
        """The caller, with the job id that follows from an `Idempotency-Key`, if there is one. Raises: ProblemError."""
        if "idempotency-key" not in self._headers or "Idempotency-Key" not in self._heeds:
            return self.principal
        key = self.idempotency_key
        if not key:
            return self.principal
        return msgspec.structs.replace(self.principal, keyed=keyed_id(self.principal.name, key))

    @property
    def if_match(self) -> int | None:
        """The sequence of the version that the act is decided on, None for any. Raises: ProblemError."""
        given = self.heeded("If-Match").strip()
        if given in {"", "*"}:
            return None
        words = given.removeprefix("W/").strip('"')
        if not words.isdecimal() or len(words) > _DIGITS_MAX:
            raise ProblemError("BAD_REQUEST", f"If-Match is {given[:80]!r}: give the ETag of an answer")
        return int(words)

    def has(self, etag: str) -> bool:
        """Return whether the client has this answer already, by `If-None-Match`."""
        said = self.heeded("If-None-Match")
        if not said:
            return False
        given = [each.strip().removeprefix("W/") for each in said.split(",")]
        return f'"{etag}"' in given or "*" in given

    @property
    def wait_s(self) -> float | None:
        """Seconds to wait for the end, by `Prefer: wait=N`; None: do not wait. Raises: ProblemError."""
        said = self.heeded("Prefer")
        for preference in said.split(",") if said else ():
            name, _, value = preference.strip().partition("=")
            if name.strip().lower() != "wait":
                continue
            if not value.strip().isdecimal():
                raise ProblemError("BAD_REQUEST", f"Prefer is {preference[:80]!r}: write wait=SECONDS")
            return min(float(value), WAIT_MAX_S)
        return None

    @contextlib.asynccontextmanager
    async def waiting(self, limit_s: float) -> AsyncGenerator[anyio.CancelScope, None]:
        """Let the block wait at most this long, and end the wait when the client leaves or the gateway stops.

        Call it after the body was read. The scope shows whether the wait was cut.

        Raises: ProblemError (SHARE_USED, BUSY); BAD_REQUEST at the end if the client has left, so that nothing more is
            read for it.
        """
        with opened("waits"), self.gateway.life.waiting(limit_s) as scope:
            leaving = asyncio.create_task(self._cancelled_when_left(scope))
            try:
                yield scope
            finally:
                leaving.cancel()
        if leaving.done() and not leaving.cancelled():
            raise ProblemError("BAD_REQUEST", "the connection ended while the request waited: send it again")

    async def _cancelled_when_left(self, scope: anyio.CancelScope) -> None:
        # A problem here is about an unread body, or about a key that ended meanwhile.
        with contextlib.suppress(ProblemError):
            while (await self.request.receive())["type"] != "http.disconnect":
                pass
        scope.cancel()

    @property
    def last_event_id(self) -> int | None:
        """The stream sequence of the last event that the client has, None without one. Raises: ProblemError."""
        given = self.heeded("Last-Event-ID").strip()
        if not given:
            return None
        if not given.isdecimal() or len(given) > _DIGITS_MAX:
            raise ProblemError("BAD_REQUEST", f"Last-Event-ID is {given[:80]!r}: give the id of an event")
        return int(given)

    @property
    def is_head(self) -> bool:
        """Whether the client asks for the head of the answer only."""
        return self.request.method == "HEAD"

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body part by part, no faster than the handler takes it."""
        return self.request.stream()


def keyed_id(principal: str, key: str) -> str:
    """Return the id of the job that a principal names by a key; two principals never get the same one."""
    digest = hashlib.sha256(f"{principal}\0{key}".encode()).digest()
    return "i-" + base64.urlsafe_b64encode(digest)[:43].decode()
