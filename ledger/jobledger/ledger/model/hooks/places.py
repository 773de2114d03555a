"""The test for addresses of the public internet, and the address in the host of a URL, if it has one. Pure.

Names are not looked up here: the code that connects does that, and then checks the address.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: The special-purpose networks of IANA's registry; `is_global` knows only some of them, which depend on the version of
#: Python. The relays of 6to4 (192.88.99.0/24) are public in the registry, but not the address of one machine.
_PURPOSES: Final = tuple(
    ipaddress.IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
#: Only here are IPv6 addresses of single machines on the internet; mapped, translated and local ones are elsewhere.
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
#: The parts of it that lead to other addresses (Teredo, 6to4) or are for documents.
_NOT_PLACES: Final = tuple(
    map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
_LOCAL: Final = "localhost"


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet, and leads to no other address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _PURPOSES)
    is_place = address in _GLOBAL_UNICAST and address.is_global and address.scope_id is None
    return is_place and not any(address in network for network in _NOT_PLACES)


def address_in(host: str) -> Address | None:
    """Return the address that the host of a URL stands for without a look-up; None for a name that must be looked up.

    As the machine's resolver reads them, `127.1`, `0x7f.1`, `0177.0.0.1` and `2130706433` are all 127.0.0.1. So is
    `localhost`, whatever a resolver says.
    """
    host = host.rstrip(".").lower()
    if host == _LOCAL or host.endswith(f".{_LOCAL}"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
