"""The values of a request: the fields of a form, and a Struct made of form fields or of an address's parameters.

For a Struct, empty values count as absent, and values with unknown names are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request

from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.problems import ProblemError, broken_off

T = TypeVar("T", bound=msgspec.Struct)


def read_query(kind: type[T], pairs: Iterable[tuple[str, str]]) -> T:
    """Return the pairs as a Struct. Raises: ProblemError."""
    fields = {each.encode_name: each.type for each in fields_of(kind)}
    given: dict[str, Any] = {}
    for name, value in pairs:
        if value and name in fields:
            given[name] = [*given.get(name, []), value] if _is_many(fields[name]) else value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProblemError("BAD_REQUEST", f"the address is not as it must be: {error}") from error


async def read_form(request: Request, *, bytes_max: int, fields_max: int) -> dict[str, list[str]]:
    """Return the fields of a form, each with its values. Raises: ProblemError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise ProblemError("BAD_REQUEST", "send the form as application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > bytes_max:
                raise ProblemError("PAYLOAD_TOO_LARGE", f"the form has more than {bytes_max:,} bytes")
    except ClientDisconnect as error:
        raise broken_off() from error
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=fields_max)
    except ValueError as error:
        raise ProblemError("BAD_REQUEST", f"the form cannot be read: {error}") from error


def _is_many(kind: Any) -> bool:
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    return get_origin(kind) is tuple
