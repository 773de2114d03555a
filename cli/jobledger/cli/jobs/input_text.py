"""A job's input as one JSON object on a command line or on stdin."""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec

from jobledger.ledger import LedgerConfig
from jobledger.ledger.model.errors import InvalidInputError, PayloadTooLargeError
from jobledger.ledger.model.json_text import check_text

_INPUT_BYTES_MAX: Final = LedgerConfig().payload_bytes_max


def read_object(input_text: str, *, what: str, option: str = "--input") -> dict[str, Any]:
    """Return the JSON object in the text of `option`, or on stdin for "-".

    Raises: InvalidInputError; PayloadTooLargeError, which names `what`.
    """
    text = _read_stdin() if input_text == "-" else input_text.encode("utf-8", "surrogateescape")
    if len(text) > _INPUT_BYTES_MAX:
        raise PayloadTooLargeError(what, len(text), _INPUT_BYTES_MAX)
    value: Any = msgspec.json.decode(check_text(text, what=f"JSON of {option}"))
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"{option} must be a JSON object"
            + (' with the arguments by name, as in {"user_id": 7}' if option == "--input" else "")
        )
    return value  # pyright: ignore[reportUnknownVariableType] # an object's keys are text, its values anything


def _read_stdin() -> bytes:
    """Read all of stdin, up to the largest size of an input.

    Raises: InvalidInputError for more.
    """
    text = sys.stdin.buffer.read(_INPUT_BYTES_MAX + 1)
    if len(text) > _INPUT_BYTES_MAX:
        limit = f"{_INPUT_BYTES_MAX:,} bytes"
        raise InvalidInputError(
            f"the input on stdin is larger than {limit}: store it elsewhere and pass a reference"
        )
    return text
