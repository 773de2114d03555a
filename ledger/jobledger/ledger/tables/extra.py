"""The libraries of the extra `tables`: loaded where rows are written or read, and nowhere else."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from jobledger.ledger.model.errors import ConfigurationError

_LIBRARIES: Final = ("duckdb", "pyarrow")


def need_tables() -> None:
    """See to it that tables can be made here. Raises: ConfigurationError, which says what to install."""
    for library in _LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise _missing(library)


def load(name: str) -> Any:
    """Return a module of these libraries. Raises: ConfigurationError, which says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name.partition(".")[0]) from error


def _missing(library: str) -> ConfigurationError:
    return ConfigurationError(
        f"tables need {library}, which is not installed here: pip install 'jobledger[tables]'"
    )
