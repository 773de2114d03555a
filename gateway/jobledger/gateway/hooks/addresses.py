"""Addresses that deliveries may go to: a host is resolved, all its addresses are checked, and one is used.

The person who sets a webhook chooses its URL, but the gateway is inside a network that this person may not reach. So it
connects only to addresses of the public internet, unless its settings allow others. A name is resolved once for each
request, and the connection uses the address that was checked: a later change of the name has no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

import httpx

from jobledger.ledger.model.errors import ConfigurationError, RefusedError
from jobledger.ledger.model.hooks.places import is_public

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Returns the addresses that a host and a port stand for, as texts. Raises: OSError.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class TargetRefusedError(RefusedError):
    """A delivery would have gone to an address that is not one of the public internet, and was not sent."""


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks that are allowed, from texts such as `10.1.0.0/16`. Raises: ConfigurationError."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{error}: name a network such as 10.1.0.0/16, or one address") from error


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host as the machine's resolver says. Raises: OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Targets:
    """A check of the addresses that deliveries may go to."""

    def __init__(self, allowed: Sequence[Network] = (), resolve: Resolve = resolve) -> None:
        """`allowed`: networks beside the public internet."""
        self._allowed = allowed
        self._resolve = resolve

    async def address(self, host: str, port: int) -> str:
        """Return the address to connect to for a host: the first one, if all are allowed.

        A name is refused if any of its addresses is not allowed, since its owner could switch between them.

        Raises: TargetRefusedError; OSError if the name is not known.
        """
        found = await self._resolve(host, port)
        for text in found:
            if not self._may(text):
                raise TargetRefusedError(
                    f"{host} stands for {text}, which is not an address of the public internet: give another URL, or "
                    "start the gateway with --allow-target NETWORK"
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
    """Sends each request to a checked address; `Host` and the check of the certificate still use the name."""

    def __init__(self, targets: Targets, inner: httpx.AsyncBaseTransport) -> None:
        self._targets = targets
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises: TargetRefusedError, OSError, httpx.TransportError."""
        url = request.url
        # Use the encoded host, which is sent: `url.host` decodes international names, which could resolve differently.
        host = url.raw_host.decode("ascii")
        port = url.port or (443 if url.scheme == "https" else 80)
        address = await self._targets.address(host, port)
        placed = httpx.Request(
            request.method,
            url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await self._inner.handle_async_request(placed)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()
