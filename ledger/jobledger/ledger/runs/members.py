"""The end of a child in the record of its run."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

_NULL: Final = msgspec.Raw(b"null")


class MemberEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a child in the record of its run's step."""

    state: Literal["completed", "dead_lettered", "cancelled", "discarded"]
    result: msgspec.Raw = _NULL  #: result of a completed child
    error: str = ""  #: error of any other, as a sentence
