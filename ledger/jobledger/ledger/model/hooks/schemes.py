"""Schemes of signatures as data, and one verifier for all. Pure; the present time is an argument.

A scheme names the header of the signature, its algorithm and form, and the signed content. Providers differ in nothing
else, so there is no code for any of them. Sources: the documentation of each provider, and the specification of
Standard Webhooks.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.pointers import check_pointer, value_at

#: The proof of a request: an HMAC with this hash; `token`: the secret itself, as with bearer tokens.
Algorithm = Literal["sha256", "sha512", "sha1", "token"]
Encoding = Literal["hex", "base64"]
#: The form of a secret: its characters are the key, or it is base64 after an optional `whsec_`.
KeyForm = Literal["text", "base64"]
Code = Literal["BAD_SIGNATURE", "STALE_TIMESTAMP"]

_SIGNATURES_MAX: Final = 16  # signatures in one request: more than any rotation needs
_HEADER_CHARACTERS_MAX: Final = 8_192
_TEMPLATE_MAX: Final = 200
_SECRET_PREFIX: Final = "whsec_"
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", flags=re.ASCII)
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_SECONDS: Final = re.compile(r"[0-9]{1,12}", flags=re.ASCII)
_FIELDS: Final = frozenset({"body", "timestamp", "id"})


class Scheme(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider signs its requests."""

    header: str  #: the header of the signature or signatures
    algorithm: Algorithm = "sha256"  #: the hash of the HMAC; `token`: the header holds the secret itself
    encoding: Encoding = "hex"  #: the form of a signature
    prefix: str = ""  #: the text before a signature: `sha256=`, `v1,`, `Bearer `
    separator: str = ""  #: the text between several signatures in the header; "": there is only one
    signed: str = (
        "{body}"  #: template of the signed content, of {body}, {timestamp} and {id}: `v0:{timestamp}:{body}`
    )
    key: KeyForm = "text"  #: the form of the secret
    timestamp_header: str = ""  #: the header of the time of sending, in seconds since 1970; "": there is none
    timestamp_prefix: str = ""  #: the text before the time, if that header has several parts: `t=`
    id_header: str = ""  #: the header of the provider's id of the delivery; "": it has none
    id_at: str = ""  #: the JSON pointer to that id, where it is in the body


def check_scheme(scheme: Scheme) -> None:
    """Refuse a scheme that could never verify anything, or would verify less than it claims.

    Raises: InvalidInputError.
    """
    for field in ("header", "timestamp_header", "id_header"):
        _check_header(field, getattr(scheme, field), needed=field == "header")
    if scheme.id_at:
        check_pointer(scheme.id_at)
    if scheme.id_at and scheme.id_header:
        raise InvalidInputError("a scheme has id_header or id_at, not both: leave one out")
    if scheme.separator not in ("", " ", ",", ";"):
        raise InvalidInputError("separator must be a space, a comma or a semicolon")
    if scheme.algorithm != "token":
        _check_signed(scheme)
    elif scheme.timestamp_header:
        raise InvalidInputError("a token proves no timestamp: leave timestamp_header out")


def _check_signed(scheme: Scheme) -> None:
    fields = _FIELD.findall(scheme.signed)
    rest = _FIELD.sub("", scheme.signed)
    if fields.count("body") != 1 or not set(fields) <= _FIELDS or set(rest) & set("{}"):
        raise InvalidInputError(
            "signed must hold {body} once, and may hold {timestamp} and {id}: write it as {timestamp}.{body}"
        )
    if len(scheme.signed) > _TEMPLATE_MAX:
        raise InvalidInputError(f"signed must have at most {_TEMPLATE_MAX} characters")
    if ("timestamp" in fields) != bool(scheme.timestamp_header):
        raise InvalidInputError(
            "timestamp_header and {timestamp} in signed belong together: one that is not signed proves nothing"
        )
    if "id" in fields and not scheme.id_header:
        raise InvalidInputError("signed has {id}: say in id_header where it is")


class VerifiedRequest(msgspec.Struct, frozen=True):
    """The proof that a request is recent, and that its sender has one of the secrets."""

    secret: int  #: the number of the secret that fits, from 1
    timestamp: int | None = None  #: when it was sent, in seconds since 1970; None: the scheme does not say


class UnverifiedRequest(msgspec.Struct, frozen=True):
    """The refusal of a request."""

    code: Code
    why: str  #: one sentence, without anything that the request says


def verify(
    scheme: Scheme,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime,
    tolerance_s: int,
) -> VerifiedRequest | UnverifiedRequest:
    """Verify a request: every secret is tried with every signature, in the same time whichever matches.

    `headers`: by their names in lower case. `secrets`: in their written form; one that is no key of this scheme never
    matches. The time of sending may be `tolerance_s` before or after now.
    """
    given = headers.get(scheme.header.lower(), "")
    if not given:
        return _bad(f"the header {scheme.header} is missing")
    stamp = _timestamp(scheme, headers)
    if stamp is None:
        return _bad(f"the header {scheme.timestamp_header} has no time in seconds")
    delivery = headers.get(scheme.id_header.lower(), "") if scheme.id_header else ""
    # A dot in an id could be read as its end: then another id would have the same signature.
    if "{id}" in scheme.signed and (not delivery or "." in delivery):
        return _bad(f"the header {scheme.id_header} is missing, or has a dot")
    content = _content(scheme, body, stamp, delivery)
    fits = 0
    for number, secret in enumerate(secrets, 1):
        for signature in _signatures(scheme, given):
            if _fits(scheme, secret, content, signature) and not fits:
                fits = number
    if not fits:
        return _bad(f"no signature in the header {scheme.header} fits a secret of the route")
    if not stamp:
        return VerifiedRequest(fits)
    if abs(now.timestamp() - int(stamp)) > tolerance_s:
        why = f"the request was signed more than {tolerance_s:,} s before or after now: send it again"
        return UnverifiedRequest("STALE_TIMESTAMP", why)
    return VerifiedRequest(fits, int(stamp))


def delivery_named(scheme: Scheme, headers: Mapping[str, str], document: Any) -> str:
    """Return the provider's id of a delivery, "" without one; `document` is the body as JSON."""
    if scheme.id_header:
        return headers.get(scheme.id_header.lower(), "").strip()
    found = value_at(document, scheme.id_at) if scheme.id_at else ""
    return found.strip() if isinstance(found, str) else ""


def sign(scheme: Scheme, secret: str, body: bytes, *, timestamp: str = "", delivery: str = "") -> str:
    """Return the header with a provider's signature of a request; for examples and tests.

    Raises: InvalidInputError for a secret that is no key of the scheme.
    """
    if scheme.algorithm == "token":
        return f"{scheme.prefix}{secret}"
    key = key_of(scheme, secret)
    digest = hmac.digest(key, _content(scheme, body, timestamp, delivery), scheme.algorithm)
    text = digest.hex() if scheme.encoding == "hex" else base64.b64encode(digest).decode()
    signature = f"{scheme.prefix}{text}"
    own_time = scheme.timestamp_prefix and scheme.timestamp_header == scheme.header
    return f"{scheme.timestamp_prefix}{timestamp}{scheme.separator}{signature}" if own_time else signature


def key_of(scheme: Scheme, secret: str) -> bytes:
    """Return the key in a secret. Raises: InvalidInputError, which does not show the secret."""
    if scheme.key == "text":
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        raise InvalidInputError("a secret of this scheme is base64, behind whsec_ or without it") from None


def _check_header(field: str, name: str, *, needed: bool) -> None:
    if (needed or name) and _NAME.fullmatch(name) is None:
        raise InvalidInputError(f"{field} must be the name of a header, got {ascii(name)[:80]}")


def _bad(why: str) -> UnverifiedRequest:
    return UnverifiedRequest("BAD_SIGNATURE", why)


def _timestamp(scheme: Scheme, headers: Mapping[str, str]) -> str | None:
    """Return the written time of sending; "": the scheme has none; None: the request lacks it."""
    if not scheme.timestamp_header:
        return ""
    given = headers.get(scheme.timestamp_header.lower(), "")[:_HEADER_CHARACTERS_MAX]
    parts = _parts(scheme, given) if scheme.timestamp_prefix else [given.strip()]
    found = [
        part.removeprefix(scheme.timestamp_prefix)
        for part in parts
        if part.startswith(scheme.timestamp_prefix)
    ]
    return found[0] if found and _SECONDS.fullmatch(found[0]) else None


def _parts(scheme: Scheme, header: str) -> list[str]:
    return [part.strip() for part in (header.split(scheme.separator) if scheme.separator else [header])]


def _signatures(scheme: Scheme, header: str) -> list[str]:
    """Return the signatures of a header without their prefix, at most 16; case does not matter in a prefix."""
    size = len(scheme.prefix)
    parts = _parts(scheme, header[:_HEADER_CHARACTERS_MAX])
    fitting = [part[size:] for part in parts if part[:size].lower() == scheme.prefix.lower()]
    return fitting[:_SIGNATURES_MAX]


def _content(scheme: Scheme, body: bytes, timestamp: str, delivery: str) -> bytes:
    """Return the bytes that are signed: the template, with the body put in as it is."""
    before, _, after = scheme.signed.partition("{body}")
    around = [
        text.replace("{timestamp}", timestamp).replace("{id}", delivery).encode() for text in (before, after)
    ]
    return body.join(around)


def _fits(scheme: Scheme, secret: str, content: bytes, signature: str) -> bool:
    if not secret:
        return False
    if scheme.algorithm == "token":
        return hmac.compare_digest(secret.encode(), signature.encode())
    try:
        key = key_of(scheme, secret)
        given = (
            binascii.unhexlify(signature)
            if scheme.encoding == "hex"
            else base64.b64decode(signature, validate=True)
        )
    except (ValueError, InvalidInputError):
        return False
    return bool(key) and hmac.compare_digest(hmac.digest(key, content, scheme.algorithm), given)


#: The schemes of well-known providers, by name. `standard` is that of Standard Webhooks.
PRESETS: Final[Mapping[str, Scheme]] = {
    "github": Scheme(header="X-Hub-Signature-256", prefix="sha256=", id_header="X-GitHub-Delivery"),
    "stripe": Scheme(
        header="Stripe-Signature",
        prefix="v1=",
        separator=",",
        signed="{timestamp}.{body}",
        timestamp_header="Stripe-Signature",
        timestamp_prefix="t=",
        id_at="/id",
    ),
    "slack": Scheme(
        header="X-Slack-Signature",
        prefix="v0=",
        signed="v0:{timestamp}:{body}",
        timestamp_header="X-Slack-Request-Timestamp",
        id_at="/event_id",
    ),
    "standard": Scheme(
        header="webhook-signature",
        encoding="base64",
        prefix="v1,",
        separator=" ",
        signed="{id}.{timestamp}.{body}",
        key="base64",
        timestamp_header="webhook-timestamp",
        id_header="webhook-id",
    ),
    "gitlab-token": Scheme(header="X-Gitlab-Token", algorithm="token", id_header="Idempotency-Key"),
    "bearer": Scheme(header="Authorization", algorithm="token", prefix="Bearer "),
}
