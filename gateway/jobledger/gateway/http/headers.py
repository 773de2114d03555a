"""The headers that only some endpoints heed, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

WAIT_MAX_S: Final = 60.0
KEY_LENGTH_MAX: Final = 255

Header = Literal["Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID", "Prefer"]


class HeaderSaid(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a header in the document. No header is required."""

    description: str
    schema: dict[str, Any]  #: JSON Schema of its value


_TEXT: Final = {"type": "string"}
HEADERS: Final[dict[Header, HeaderSaid]] = {
    "Idempotency-Key": HeaderSaid(
        description="Names what is added. The same key of the same asker adds it once, however often it is sent.",
        schema={**_TEXT, "maxLength": KEY_LENGTH_MAX},
    ),
    "If-Match": HeaderSaid(
        description="The ETag of the job that the asker has seen. The act is refused where the job has changed since.",
        schema=_TEXT,
    ),
    "If-None-Match": HeaderSaid(
        description="The ETag of an answer that the asker has. Where nothing has changed, the answer is 304.",
        schema=_TEXT,
    ),
    "Last-Event-ID": HeaderSaid(
        description="The id of the last event that the asker has. The answer begins with the event after it.",
        schema={"type": "integer", "minimum": 0},
    ),
    "Prefer": HeaderSaid(
        description=f"`wait=N` has the answer wait up to N seconds for the end, at most {WAIT_MAX_S:g}.",
        schema={**_TEXT, "examples": ["wait=30"]},
    ),
}
