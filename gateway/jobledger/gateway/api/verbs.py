"""Verbs as endpoints: address, body, query and answer follow from the declarations of `jobledger.admin.verbs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from types import ModuleType
from typing import Any

import msgspec

from jobledger.admin.verbs.kit import Declaration, Field, answer_type, declared_in, fields_of, words_in
from jobledger.gateway.api.parameters import aware
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import InvalidInputError


def endpoints_of(module: ModuleType) -> Iterator[Endpoint]:
    """Yield an endpoint for each verb that a module declares."""
    return map(endpoint_of, declared_in(module))


def endpoint_of(declaration: Declaration) -> Endpoint:
    """Return the endpoint of a verb."""
    kind, fields = declaration.verb, fields_of(declaration.verb)
    words = words_in(declaration.path)
    rest = [each for each in fields if each.name not in words]
    in_query = [each for each in rest if each.is_parameter(declaration)]
    in_body = [each for each in rest if each not in in_query]
    whole = next((each for each in in_body if each.is_body), None)
    moments = [each for each in fields if each.kind is datetime]

    async def handle(asked: ApiRequest, *, query: Any = None, body: Any = None, **given: Any) -> Any:
        if whole is not None:
            given[whole.name] = body
        for part in (query, None if whole is not None else body):
            given |= {} if part is None else msgspec.structs.asdict(part)
        for each in moments:
            given[each.name] = aware(each.wire, given[each.name])
        try:
            wish = kind(**given)
        except InvalidInputError as error:  # a value of the request is wrong
            raise ProblemError("BAD_REQUEST", str(error)) from error
        if_match = asked.if_match if "If-Match" in declaration.heeds else None
        found = await wish.perform(GatewayPlace(asked, trace=asked.trace, if_match=if_match))
        location, version = declaration.location, wish.version_of(found)
        return Answer(
            value=found,
            status=wish.status_of(found),
            headers={"location": declaration.filled(location, wish, found)} if location else {},
            etag=None if version is None else str(version),
        )

    handle.__name__ = "_".join(
        re.findall(r"[A-Z][a-z]*", kind.__name__)
    ).lower()  # the OpenAPI document uses this name
    return Endpoint(
        method=declaration.method,
        path=declaration.path,
        permission=declaration.permission,
        handler=handle,
        summary=declaration.summary,
        tag=declaration.path.split("/")[2],
        returns=answer_type(kind),
        status=declaration.status,
        query=_struct(kind.__name__ + "Query", kind, in_query),
        body=_struct(kind.__name__, kind, in_body) if whole is None else whole.kind,
        problems=declaration.problems,
        heeds=declaration.heeds,
        also=declaration.also,
    )


def _struct(name: str, verb: type[Any], fields: Iterable[Field]) -> type[msgspec.Struct] | None:
    """Return a Struct of some fields of a verb, None for no fields."""
    rows: list[Any] = [
        (each.name, each.declared)
        if each.default is msgspec.NODEFAULT
        else (each.name, each.declared, each.default)
        for each in fields
    ]
    if not rows:
        return None
    renamed = {each.name: each.wire for each in fields if each.name != each.wire}
    made = msgspec.defstruct(
        name, rows, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=renamed or None
    )
    made.__doc__ = verb.__doc__
    return made
