"""One post to a receiver, limited in time and size, and its outcome."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import msgspec

from jobledger.gateway.hooks.addresses import CheckedTransport, TargetRefusedError, Targets
from jobledger.ledger.model.version import VERSION

TIMEOUT_S: Final = 15.0  #: limit of one post: name, connection and answer together
ANSWER_BYTES_MAX: Final = 64 << 10  #: bytes of an answer that are read
KEPT_BYTES: Final = 2 << 10  #: bytes of an answer that the attempt's result or error keeps
RETRY_AFTER_S_MAX: Final = 24 * 3600.0


class PostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a post."""

    status: int  #: 0: no answer came
    why: str  #: in words: `503 Service Unavailable`, `no answer within 15 s`
    answer: str = ""  #: the beginning of the body
    retry_after_s: float | None = None  #: the receiver asks to wait this long before the next try
    is_unwanted: bool = False  #: whether the receiver refuses further tries of this message

    @property
    def is_received(self) -> bool:
        """Whether the receiver accepted the post."""
        return 200 <= self.status < 300  # noqa: PLR2004 - as HTTP says


class Poster:
    """Posts to receivers; every post opens its own connection, so that it uses an address that was just checked."""

    def __init__(self, targets: Targets, *, timeout_s: float = TIMEOUT_S) -> None:
        self._targets = targets
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        """Post once. A redirect is an answer like any other, and is not followed.

        Raises: nothing, since a failure is returned as an answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, body, headers)
        except TimeoutError:
            return PostAnswer(status=0, why=f"no answer within {self._timeout_s:g} s")
        except TargetRefusedError as error:
            return PostAnswer(status=0, why=str(error))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return PostAnswer(status=0, why=_why(error))

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        limits = httpx.Limits(max_keepalive_connections=0)
        inner = httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=False, retries=0)
        client = httpx.AsyncClient(
            transport=CheckedTransport(self._targets, inner),
            follow_redirects=False,
            trust_env=False,
            timeout=self._timeout_s,
        )
        sent = {
            "user-agent": f"jobledger/{VERSION}",
            "accept": "*/*",
            "accept-encoding": "identity",
            **headers,
        }
        async with client, client.stream("POST", url, content=body, headers=sent) as response:
            read = await _beginning(response)
            words = f"{response.status_code} {response.reason_phrase}".strip()
            return PostAnswer(
                status=response.status_code,
                why=f"{words}, and redirects are not followed" if response.is_redirect else words,
                answer=read[:KEPT_BYTES].decode(errors="replace"),
                retry_after_s=_retry_after(response.headers.get("retry-after", "")),
                is_unwanted=response.headers.get("webhook-delivery", "") == "abort-message",
            )


def _why(error: BaseException) -> str:
    """Return why no answer came, in a sentence; after a TLS failure, with its reason."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        found = cause.verify_message.rstrip(".")
        return f"the receiver's certificate is refused ({found}): SSL_CERT_FILE names a file of authorities to trust"
    if cause is not None:
        return f"the receiver speaks no TLS that can be used ({cause.reason or 'it hung up'}): is it https?"
    return str(error)[:300] or type(error).__name__


async def _beginning(response: httpx.Response) -> bytes:
    """Read an answer's body as it is sent, up to the bound."""
    read = bytearray()
    async for part in response.aiter_raw():
        read += part[: ANSWER_BYTES_MAX - len(read)]
        if len(read) >= ANSWER_BYTES_MAX:
            break
    return bytes(read)


def _retry_after(text: str) -> float | None:
    """Return the seconds until the next try, at most a day; None without a readable future time."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        seconds = float(text[:12])
    else:
        try:
            moment = parsedate_to_datetime(text)
            seconds = (moment - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):  # a time without a zone cannot be compared, either
            return None
    return min(seconds, RETRY_AFTER_S_MAX) if seconds > 0 else None
