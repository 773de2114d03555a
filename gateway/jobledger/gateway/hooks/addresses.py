"""Where a delivery may go: names are resolved here, every address is checked, and the checked one is connected to.

A URL is chosen by whoever may set a webhook, and the gateway stands inside a network that he may not see. So nothing
that is not an address of the public internet is connected to, unless the gateway was told to allow it. A name is
resolved once for each request and the connection goes to that very address: what the name stands for a moment later
does not matter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import httpx

from jobledger.ledger.model.errors import ConfigurationError, RefusedError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Returns the addresses that a host and a port stand for, as texts. Raises: OSError.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Public by the registry's words, and not a place of its own: relays of 6to4.
_RELAYS: Final = ipaddress.ip_network("192.88.99.0/24")
#: Only here are IPv6 addresses of single machines on the internet; what is mapped, translated or local is elsewhere.
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
#: Of these, what leads to other addresses (Teredo, 6to4) or is for documents.
_NOT_PLACES: Final = tuple(
    map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)


class TargetRefusedError(RefusedError):
    """A delivery would have gone to an address that is not one of the public internet, and was not sent."""


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks that are allowed, from texts such as `10.1.0.0/16`. Raises: ConfigurationError."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{error}: name a network such as 10.1.0.0/16, or one address") from error


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public internet, and leads to no other one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and address not in _RELAYS
    is_place = address in _GLOBAL_UNICAST and address.is_global and address.scope_id is None
    return is_place and not any(address in network for network in _NOT_PLACES)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host as the machine's resolver says. Raises: OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Targets:
    """Which addresses deliveries may go to."""

    def __init__(self, allowed: Sequence[Network] = (), resolve: Resolve = resolve) -> None:
        """`allowed`: networks beside the public internet."""
        self._allowed = allowed
        self._resolve = resolve

    async def address(self, host: str, port: int) -> str:
        """Return the address to connect to for a host: the first one, where all are allowed.

        A name that also stands for an address that is not allowed is refused: which one is meant is its owner's choice
        from moment to moment.

        Raises: TargetRefusedError; OSError where the name is not known.
        """
        found = await self._resolve(host, port)
        for text in found:
            if not self._may(text):
                raise TargetRefusedError(
                    f"{host} stands for {text}, which is not an address of the public internet: give another URL, or "
                    "start the gateway with that network allowed"
                )
        if not found:
            raise OSError(f"{host} has no address")
        return found[0]

    def _may(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return is_public(address) or any(
            network.version == address.version and address in network for network in self._allowed
        )


class CheckedTransport(httpx.AsyncBaseTransport):
    """Sends each request to an address that was checked; the name stays in `Host` and in the certificate's check."""

    def __init__(self, targets: Targets, inner: httpx.AsyncBaseTransport) -> None:
        self._targets = targets
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises: TargetRefusedError, OSError, httpx.TransportError."""
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        address = await self._targets.address(url.host, port)
        placed = httpx.Request(
            request.method,
            url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": url.host},
        )
        return await self._inner.handle_async_request(placed)

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._inner.aclose()
