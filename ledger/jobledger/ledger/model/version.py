"""Which version of the distribution runs, as it was installed."""

from __future__ import annotations

import functools

#: Said where the code runs from a folder that was never installed.
UNKNOWN = "unknown"


@functools.cache
def version() -> str:
    """Return the installed distribution's version, `UNKNOWN` when there is none."""
    from importlib import metadata  # noqa: PLC0415 - slow to load, and few processes ask

    try:
        return metadata.version("jobledger")
    except metadata.PackageNotFoundError:
        return UNKNOWN
