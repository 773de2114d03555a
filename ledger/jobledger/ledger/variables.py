"""Names of environment variables: each setting that one may say has the setting's own name."""

from __future__ import annotations


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"JOBLEDGER_{name.upper()}"
