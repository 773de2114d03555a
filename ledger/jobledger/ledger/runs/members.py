"""How a child of a run ended, as its run records it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

_NULL: Final = msgspec.Raw(b"null")


class MemberEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a child ended, as the step of its run records it."""

    state: Literal["completed", "dead_lettered", "cancelled", "discarded"]
    result: msgspec.Raw = _NULL  #: of one that completed
    error: str = ""  #: of any other, as a sentence
