"""`POST /in/{route}`: verifies a delivery of another system, and records it with all jobs that it makes, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint, Raw
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.hooks.delivery import MatchedJob
from jobledger.ledger.model.hooks.errors import RouteNotFoundError, SecretUnavailableError
from jobledger.ledger.model.hooks.match import document_of
from jobledger.ledger.model.hooks.route import Route, RouteDefinition
from jobledger.ledger.model.hooks.schemes import (
    Scheme,
    UnverifiedRequest,
    VerifiedRequest,
    delivery_named,
    verify,
)
from jobledger.ledger.webhooks.receiver import Arrival
from jobledger.ledger.webhooks.secrets import Secrets

_log: Final = logging.getLogger("jobledger.gateway")
_ACCEPTED: Final = 202
#: Code of a delivery with a known id and another body: it gets the first one's answer, and is listed as refused.
DIFFERENT_BODY: Final = "DIFFERENT_BODY"
_ID_CHARACTERS_MAX: Final = 1_000
#: A body may have any media type.
ANYTHING: Final = "*/*"


class DeliveryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a delivery; for a repeat, the outcome of the first one."""

    delivery: str  #: its name, as `routes deliveries` shows it; "" for a greeting, which is not recorded
    matched: int  #: number of rules that matched
    jobs: tuple[MatchedJob, ...]  #: the jobs that it made


async def receive_webhook(asked: ApiRequest, route: str) -> Answer | Raw:
    """Take a delivery: check the route, the size and the signature, then store everything as one batch."""
    gateway = asked.gateway
    if not await gateway.route_names.has(gateway.ledger, route):
        raise RouteNotFoundError(route)
    known = await gateway.ledger.routes.get(route)
    definition = known.definition
    scheme = None if definition is None else definition.signature
    if definition is None or scheme is None:  # for programs alone: others must not learn of it
        raise RouteNotFoundError(route)
    headers = _headers(asked)
    body = await _body(asked, definition.body_bytes_max)
    verified = _verified(asked, known, scheme, headers, body)
    document = document_of(body, headers.get("content-type", ""))
    hello = _hello(definition, headers, document)
    if hello is not None:
        return Raw(data=msgspec.json.encode(hello))
    arrival = Arrival(
        body=body,
        headers=headers,
        given=delivery_named(scheme, headers, document)[:_ID_CHARACTERS_MAX],
        scheme=definition.scheme_name,
        secret=verified.secret,
    )
    found = await gateway.ledger.routes.receive(known, arrival, trace=asked.trace)
    if found.differs:
        why = (
            f"delivery {found.delivery} was received before with another body: nothing was done with this one"
        )
        client = asked.request.client.host if asked.request.client else ""
        asked.request.scope["jobledger.code"] = DIFFERENT_BODY  # counted and logged under this code
        gateway.refused.add(route, DIFFERENT_BODY, why, client=client, at=gateway.ledger.clock.now())
    taken = DeliveryAnswer(delivery=found.delivery, matched=len(found.matched), jobs=found.matched)
    return Answer(value=taken, status=_ACCEPTED if found.matched else 200)


def _headers(asked: ApiRequest) -> dict[str, str]:
    """Return the headers by their names in lower case; if one occurs twice, the first counts."""
    found: dict[str, str] = {}
    for name, value in asked.request.headers.items():
        found.setdefault(name.lower(), value)
    return found


async def _body(asked: ApiRequest, bytes_max: int) -> bytes:
    """Read the body. Raises: ProblemError (PAYLOAD_TOO_LARGE)."""
    said = asked.header("content-length")
    parts: list[bytes] = []
    size = int(said) if said.isdecimal() and len(said) < 20 else 0  # noqa: PLR2004 - digits of a number
    if size <= bytes_max:
        size = 0
        async for part in asked.chunks():
            size += len(part)
            if size > bytes_max:
                break
            parts.append(part)
    if size > bytes_max:
        raise ProblemError(
            "PAYLOAD_TOO_LARGE", f"the body is larger than the {bytes_max:,} bytes that this route takes"
        )
    return b"".join(parts)


def _verified(
    asked: ApiRequest, route: Route, scheme: Scheme, headers: Mapping[str, str], body: bytes
) -> VerifiedRequest:
    """Prove a request. Raises: ProblemError (BAD_SIGNATURE, STALE_TIMESTAMP, SECRET_UNAVAILABLE)."""
    gateway, definition = asked.gateway, route.definition
    assert definition is not None, "it is set"
    now = gateway.ledger.clock.now()
    secrets = _secrets(gateway.secrets, route.name, definition)
    found = verify(scheme, secrets, headers, body, now=now, tolerance_s=definition.tolerance_s)
    if isinstance(found, UnverifiedRequest):
        client = asked.request.client.host if asked.request.client else ""
        gateway.refused.add(route.name, found.code, found.why, client=client, at=now)
        raise ProblemError(found.code, found.why)
    return found


def _secrets(secrets: Secrets, route: str, definition: RouteDefinition) -> list[str]:
    """Return the valid secrets in their order; "" for one that cannot be read, which matches nothing.

    Raises: ProblemError (SECRET_UNAVAILABLE) if none can be read.
    """
    found: list[str] = []
    for reference in definition.secrets:
        try:
            found.append(secrets.read(reference).decode())
        except (SecretUnavailableError, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, SecretUnavailableError) else "it is no text"
            _log.warning("a secret of route %s cannot be read: %s", route, why)
            found.append("")
    if not any(found):
        raise ProblemError(
            "SECRET_UNAVAILABLE", f"no secret of route {route} can be read: the log of the gateway says why"
        )
    return found


def _hello(
    definition: RouteDefinition, headers: Mapping[str, str], document: Any
) -> dict[str, object] | None:
    """Return the answer to a provider's greeting, which it sends to a new address; None for a delivery."""
    if definition.scheme == "github" and headers.get("x-github-event") == "ping":
        return {"delivery": "", "matched": 0, "jobs": []}
    if definition.scheme == "slack" and isinstance(document, dict):
        said = cast("dict[str, object]", document)
        if said.get("type") == "url_verification" and isinstance(said.get("challenge"), str):
            return {"challenge": said["challenge"]}
    return None


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/in/{route}",
        permission=None,
        public=True,
        handler=receive_webhook,
        summary="Take a webhook of somebody else, proven by its signature",
        tag="routes",
        takes=ANYTHING,
        returns=DeliveryAnswer,
        status=_ACCEPTED,
        also=(200,),
        problems=(
            "NOT_FOUND",
            "BAD_SIGNATURE",
            "STALE_TIMESTAMP",
            "PAYLOAD_TOO_LARGE",
            "SECRET_UNAVAILABLE",
            "LEDGER_BUSY",
            "LEDGER_FULL",
            "LEDGER_THROTTLED",
            "LEDGER_UNREACHABLE",
            "INTERNAL",
        ),
    ),
)
