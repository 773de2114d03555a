"""A definition as a file, in JSON or TOML: what a route or a stored graph is set to."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import check_text

_FILE_BYTES_MAX: Final = 1 << 20


def read_definition(file: Path) -> object:
    """Return what a file says: TOML where it is called so, else JSON. Raises: InvalidInputError, OSError."""
    with open_file(file, bytes_max=_FILE_BYTES_MAX) as opened:
        text = opened.read()
    try:
        if file.suffix == ".toml":
            return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{file} is not TOML: {error}") from error
    return msgspec.json.decode(check_text(text, what=f"file {file}"))
