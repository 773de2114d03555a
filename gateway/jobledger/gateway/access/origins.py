"""The source of a request: its host, its origin, and the address of its client. Pure.

A page of another site can make a browser send requests here. So the host must be a name of this gateway (else an
attacker could point a name of his own here), and a request that changes something must come from a page of ours or
carry a key, which no other site has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.account import THIS_MACHINE
from jobledger.ledger.model.errors import ConfigurationError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Headers = Mapping[str, str]
Pairs = list[tuple[bytes, bytes]]  #: headers of an answer

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS: Final = frozenset({"same-origin", "none"})
#: Types that a form of any web page can send. A script can also send no type, but the browser then names its origin.
_SIMPLE: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
#: Headers that only proxies add, besides all that begin with x-forwarded-.
_OF_PROXIES: Final = frozenset({"forwarded", "x-real-ip", "via"})
_CORS_OF_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": (
        "authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, prefer, traceparent"
    ),
    "access-control-max-age": "600",
}
_CORS_SHOWN: Final = (
    "etag, link, location, ratelimit, ratelimit-policy, retry-after, x-request-id, last-event-id"
)


class Hosts:
    """The names of a gateway."""

    def __init__(self, names: Sequence[str], *, is_loopback: bool) -> None:
        """Take 127.0.0.1, localhost, [::1] and the given `names`; beyond loopback every IP address as well."""
        self._is_loopback = is_loopback
        self._names = THIS_MACHINE | {name.lower().rstrip(".") for name in names}

    def check(self, host: str) -> None:
        """Refuse the header `Host` of somebody else. Raises: ProblemError (MISDIRECTED)."""
        name = _name_of(host)
        if name in self._names or (not self._is_loopback and _is_address(name)):
            return
        shown = ascii(host[:80]) if host else "missing"
        raise ProblemError(
            "MISDIRECTED",
            f"the header Host is {shown}, which is no name of this gateway: use one of "
            f"{', '.join(sorted(self._names))}, or start it with --allow-host NAME",
        )


def _name_of(host: str) -> str:
    """Return the name in a header `Host`, without its port; "" for what is none."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name.lower() if bracket and (not port or port[0] == ":") else ""
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") if not port or port.isdecimal() else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(method: str, headers: Headers, scheme: str) -> None:
    """Refuse a request that changes something and that a page of another site may have made.

    Only for requests without a key: no other site has one. Raises: ProblemError (CROSS_SITE).
    """
    if method in SAFE:
        return
    site = headers.get("sec-fetch-site", "")
    if site and site not in _OURS:
        raise _cross_site("another site")
    origin = headers.get("origin", "")
    if origin and not _is_same(origin, scheme, headers.get("host", "")):
        raise _cross_site(ascii(origin[:80]))


def check_proof(headers: Headers) -> None:
    """Refuse a GET that acts, unless a header says that it comes from a page of ours. Call it after `check_origin`.

    Any page can make a browser send one, and an old browser says nothing of where it comes from.

    Raises: ProblemError (CROSS_SITE).
    """
    if not headers.get("origin") and headers.get("sec-fetch-site") != "same-origin":
        raise ProblemError(
            "CROSS_SITE",
            "any web page can make a browser send this GET, and it runs jobs: send a key in Authorization, or POST",
        )


def check_direct(headers: Headers) -> None:
    """Refuse a request that came through a proxy, for a gateway set up without one: its client may be anywhere.

    Raises: ProblemError (MISDIRECTED).
    """
    for name in headers:
        if name in _OF_PROXIES or name.startswith("x-forwarded-"):
            raise ProblemError(
                "MISDIRECTED",
                f"the header {name[:40]} says that a proxy handed this on, and the gateway was told of none: start it "
                "with --behind-proxy ADDRESS of that proxy, or ask it directly",
            )


def check_kind(method: str, headers: Headers) -> None:
    """Refuse a request to the API that changes something, has no key, and is sent in a form that any page could send.

    Raises: ProblemError (CROSS_SITE).
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method not in SAFE and kind in _SIMPLE:
        raise ProblemError(
            "CROSS_SITE",
            f"Content-Type is {kind[:80]!r}, which a form of any web page can send: send application/json, or a key "
            "in Authorization",
        )


def _cross_site(where: str) -> ProblemError:
    return ProblemError(
        "CROSS_SITE",
        f"this request was made by a page of {where}: nothing was done; use the pages of this gateway",
    )


def _is_same(origin: str, scheme: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:  # it is no address at all
        return False
    standard = {"http": ":80", "https": ":443"}.get(scheme, "")
    return found.scheme == scheme and found.netloc.lower().removesuffix(
        standard
    ) == host.lower().removesuffix(standard)


def checked_origins(origins: Sequence[str]) -> frozenset[str]:
    """Return origins whose pages may use the API with a key of their own. Raises: ConfigurationError."""
    for each in origins:
        found = urlsplit(each)
        if (
            found.scheme not in {"http", "https"}
            or not found.netloc
            or each != f"{found.scheme}://{found.netloc}"
        ):
            raise ConfigurationError(
                f"--allow-origin {each[:80]!r} is no origin: write https://HOST, without a path"
            )
    return frozenset(each.lower() for each in origins)


def cors(origin: str, allowed: frozenset[str], *, is_preflight: bool) -> Pairs:
    """Return the headers that let a page of another origin read an answer, if `allowed` has that origin.

    Cookies do not count there: such a page needs a key.
    """
    if not allowed:
        return []
    found = {"vary": "Origin"}
    if origin.lower() in allowed:
        found |= {"access-control-allow-origin": origin, "access-control-expose-headers": _CORS_SHOWN}
        if is_preflight:
            found |= _CORS_OF_PREFLIGHT
    return [(name.encode(), value.encode("latin-1")) for name, value in found.items()]


def networks(option: str, given: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and ranges of addresses. Raises: ConfigurationError, naming the option."""
    try:
        return tuple(ipaddress.ip_network(each.strip(), strict=False) for each in given)
    except ValueError as error:
        raise ConfigurationError(
            f"{option}: {error}: write addresses or ranges such as 10.0.0.0/8"
        ) from error


def is_among(address: str, found: Sequence[Network]) -> bool:
    """Return whether an address is in one of the ranges; an IPv4 address mapped into IPv6 counts as IPv4."""
    try:
        given = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = given.ipv4_mapped if isinstance(given, ipaddress.IPv6Address) else None
    return any((mapped or given) in each for each in found)


def forwarded(peer: str, headers: Headers, scheme: str, proxies: Sequence[Network]) -> tuple[str, str]:
    """Return the client's address and scheme: as a trusted proxy reports them, else those of the connection.

    The client is the last address in `X-Forwarded-For` that is not such a proxy: anybody can write those before it.
    """
    if not proxies or not is_among(peer, proxies):
        return peer, scheme
    client = peer
    for address in reversed([each.strip() for each in headers.get("x-forwarded-for", "").split(",")]):
        if not _is_address(address):
            break
        client = address
        if not is_among(address, proxies):
            break
    said = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    return client, said if said in {"http", "https"} else scheme
