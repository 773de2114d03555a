"""Input of a command from a file or stdin: the bytes of a body, or a definition in JSON or TOML."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from jobledger.cli.errors import UsageError
from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import check_text

_FILE_BYTES_MAX: Final = 16 << 20  #: size of the largest body that a route accepts
STDIN: Final = "-"


def read_bytes(file: str) -> bytes:
    """Return the content of a file, or of stdin for "-". Raises: UsageError for more than 16 MiB on stdin; OSError."""
    if file != STDIN:
        with open_file(Path(file), bytes_max=_FILE_BYTES_MAX) as opened:
            return opened.read()
    text = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
    if len(text) > _FILE_BYTES_MAX:
        raise UsageError(f"what is on stdin is larger than {_FILE_BYTES_MAX:,} bytes: give less")
    return text


def read_definition(file: str) -> object:
    """Return a file's value, TOML if its name ends in .toml, else JSON. Raises: InvalidInputError, as `read_bytes`."""
    text = read_bytes(file)
    try:
        if Path(file).suffix == ".toml":
            return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{file} is not TOML: {error}") from error
    return msgspec.json.decode(check_text(text, what="JSON on stdin" if file == STDIN else f"file {file}"))
