"""Addresses of servers: split into parts, and shown without a password."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_NEXT_ADDRESS: Final = re.compile(r",\s*(?=\w+://)")


def servers_of(url: str) -> list[str]:
    """Return the addresses of a list that is separated by commas."""
    return [server.strip() for server in url.split(",")]


def check_addresses(servers: list[str]) -> None:
    """Refuse a text that is no address of a server. Raises: ValueError, whose text may hold a part of the password."""
    for server in servers:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        host = parts.hostname or ""
        if parts.scheme not in _SCHEMES or not host or re.search(r"\s", host) or parts.path.strip("/"):
            raise ValueError(server)
        _ = parts.port  # raises for an invalid port


def redact(url: str) -> str:
    """Return one address without user, password or token, whether or not it is well-formed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and credentials else url


def holds_secret(url: str) -> bool:
    """Return whether a list of addresses holds a password or token."""
    return any(redact(server) != server for server in servers_of(url))


def shown(url: str) -> str:
    """Return a list of addresses as messages show it.

    A comma may be part of a password, so the text is split only where an address surely begins.
    """
    return ", ".join(redact(part) for part in _NEXT_ADDRESS.split(url))


def user_of(servers: list[str]) -> str:
    """Return the user in addresses, "" without one; a name without a password is a token."""
    for server in servers:
        with contextlib.suppress(ValueError):
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            if parts.username and parts.password is not None:
                return unquote(parts.username)
    return ""


def decoded_credentials(servers: list[str]) -> dict[str, Any]:
    """Return the credentials of an address with `%XX` decoded, which nats-py would send undecoded.

    Empty without a `%`. Several servers with such credentials must have the same ones.
    """
    for server in servers:
        with contextlib.suppress(ValueError):  # nats-py refuses an invalid address
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            user, password = parts.username or "", parts.password
            if "%" in f"{user}{password}":
                if password is None:
                    return {"token": unquote(user)}
                return {"user": unquote(user), "password": unquote(password)}
    return {}
