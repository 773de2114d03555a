"""`Signal`: a named, typed message that can be sent to a run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.signature import UNREADABLE, result_decoder

T = TypeVar("T")


class Signal(Generic[T]):
    """A message that runs wait for, and the type of what it says: `approved = Signal("approved", Approval)`.

    A run takes it with `await run.wait(approved)`; `await ledger.signal("order-77", approved, Approval(...))` sends it.
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the public name of the option
        """Raises: InvalidTokenError, TaskDefinitionError for a type that JSON cannot hold."""
        self.name = check_token("signal name", name)
        self.type = type
        self._decoder: msgspec.json.Decoder[Any] = result_decoder(type, f"signal {name}")

    def __repr__(self) -> str:
        """Show the name."""
        return f"<signal {self.name}>"

    def encode(self, value: T, /) -> bytes:
        """Return a value as JSON text, after a look whether it can be read as the signal's type.

        Raises: InvalidInputError.
        """
        text = encode_value(value, what=f"value of signal {self.name}")
        self.read(text)
        return text

    def read(self, text: bytes) -> T:
        """Return a value that was sent.

        Raises: InvalidInputError for one of another type, such as another version of the code sent.
        """
        try:
            found: T = self._decoder.decode(text)
        except UNREADABLE as error:
            raise InvalidInputError(
                f"the value of signal {self.name} is no {_name(self.type)}: {error}"
            ) from error
        return found


def _name(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind)
