"""Durability of a server: what an acknowledged append survives, by the server's name. Source: ADR 056."""

from __future__ import annotations

from typing import Final, Literal, get_args

Durability = Literal["power", "process"]
"""What an acknowledged append survives: a power cut, or only the death of a process (some times faster)."""

_PREFIX: Final = "jobledger-"
_NAMED: Final[dict[str, Durability]] = {f"{_PREFIX}{each}": each for each in get_args(Durability)}


def name_of(durability: Durability) -> str:
    """Return the name of an embedded server, by which its clients know how it writes."""
    return f"{_PREFIX}{durability}"


def told_by(server_name: str) -> Durability | None:
    """Return the durability in a server's name; None for a server that jobledger did not configure."""
    return _NAMED.get(server_name)
