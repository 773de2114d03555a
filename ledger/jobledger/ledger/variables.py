"""Names of environment variables: each is `JOBLEDGER_` and the name of its setting."""

from __future__ import annotations


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"JOBLEDGER_{name.upper()}"
