"""Every request that a gateway answers, made of its own tables: each address, verb, form, filter and past view.

What is added to a table is asked by itself. A body or a form that its types do not tell is in `BODIES` and `FILLED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

from msgspec.inspect import (
    BoolType,
    CustomType,
    DateTimeType,
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    Metadata,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from jobledger.gateway.http.endpoint import JSON, NDJSON, Endpoint
from jobledger.gateway.pages.page import Form, Page

FORM: Final = "application/x-www-form-urlencoded"
HTML: Final = "text/html"
_LONG_AGO: Final = "2026-01-01T00:00:00Z"


class Request(NamedTuple):
    """One request, without who asks."""

    method: str
    path: str
    params: Mapping[str, Any]
    accept: str
    body: Any = None  #: JSON, or the fields of a form; None: none
    media: str = JSON  #: of the body
    of: str = ""  #: method and address as the table has them, with the verb of a form

    @property
    def sent(self) -> bytes:
        """The bytes of the body."""
        if self.body is None:
            return b""
        return urlencode(self.body).encode() if self.media == FORM else json.dumps(self.body).encode()


class Names(NamedTuple):
    """What words in braces stand for, in the ledger that is asked."""

    jobs: tuple[tuple[str, str], ...]  #: queue and id
    words: Mapping[
        str, tuple[str, ...]
    ]  #: by the word, or by the word and the kind of thing: `name schedules`
    values: Mapping[str, Any]  #: of fields of queries, bodies and forms, by name

    def paths(self, path: str) -> list[str]:
        """Return an address with each set of names that its words in braces can stand for."""
        words = re.findall(r"{(\w+)}", path)
        if {"queue", "id"} <= set(words):
            rest = {word: self._of(word, path)[0] for word in words if word not in {"queue", "id"}}
            return [path.format(queue=queue, id=job, **rest) for queue, job in self.jobs]
        if not words:
            return [path]
        rest = {word: self._of(word, path)[0] for word in words[1:]}
        return [path.format(**{words[0]: each}, **rest) for each in self._of(words[0], path)]

    def _of(self, word: str, path: str) -> tuple[str, ...]:
        kind = path.removeprefix("/v1").split("/")[1]
        found = self.words.get(f"{word} {kind}") or self.words.get(word)
        assert found is not None, f"say what {word} of {path} stands for"
        return found


#: Bodies of which the required fields are not enough to have something done.
BODIES: Final[Mapping[str, Any]] = {
    "SetRetention": {"keep_s": 3600.0},
    "NewJob": {"task": "send", "queue": "mail", "input": {"to": "ann"}},
    "ManyActs": {"act": "cancel", "filter": {"id": "own-waits"}, "reason": "why"},
    "RescheduleJob": {"delay_s": 60, "reason": "why"},
    "SetLimit": {"slots": 2, "reason": "why"},
    "DeclareSchedule": {
        "task": "send",
        "queue": "mail",
        "input": {"to": "ann"},
        "every_s": 60,
        "replace": True,
    },
    "CreateKey": {"name": "ci", "role": "viewer"},
    "SetWebhook": {
        "target": {"url": "https://shop.example/in"},
        "events": ["completed"],
        "secrets": ["env:NEW"],
    },
    "SetWatch": {"figure": "depth", "above": 1},
    "RouteDefinition": {"scheme": "github", "secrets": ["env:NEW"]},
    "TestRoute": {"delivery": "d1"},
    "RequeueJob": {"reason": "why", "edit": {"to": "bea"}},
    "NewRerun": {"failed": True, "reason": "why"},
    "NamedNode": {"name": "a", "task": "send", "queue": "mail", "input": {"to": "ann"}},
    "Simulation": {"from": _LONG_AGO, "to": "2026-01-02T00:00:00Z", "limits": {"api": 1}},
}


def body_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a JSON value that a type takes: of a structure what is required, and what `BODIES` has instead."""
    return _sample(type_info(kind), "", values)


def _sample(kind: Type, name: str, values: Mapping[str, Any]) -> Any:  # noqa: C901, PLR0911 - one for each kind
    if isinstance(kind, StructType):
        if kind.cls.__name__ in BODIES:
            return BODIES[kind.cls.__name__]
        return {
            each.encode_name: _sample(each.type, each.encode_name, values)
            for each in kind.fields
            if each.required or each.encode_name == "reason"
        }
    if name in values:
        return values[name]
    match kind:
        case Metadata(type=described):
            return _sample(described, name, values)
        case UnionType(types=types):
            return _sample(types[0], name, values)
        case LiteralType(values=words):
            return words[0]
        case BoolType():
            return True
        case IntType() | FloatType():
            return max(1, kind.ge or 1)
        case StrType():
            return "a"
        case DateTimeType():
            return _LONG_AGO
        case ListType(item_type=item) | VarTupleType(item_type=item):
            return [_sample(item, name, values)]
        case DictType() | CustomType() | Type():
            return {}


def reads(endpoints: Iterable[Endpoint], pages: Iterable[Page], names: Names, past: int) -> Iterator[Request]:
    """Yield a request for each address that only tells something: as it is, with each filter, and as of the past."""
    for endpoint in endpoints:
        if endpoint.method == "GET" and endpoint.has_head and not endpoint.public:
            yield from _looks(endpoint.path, endpoint.query, NDJSON, names, past)
    for page in pages:
        yield from _looks(page.path, page.query, HTML, names, past)


def _looks(path: str, query: Any, accept: str, names: Names, past: int) -> Iterator[Request]:
    fields: tuple[Field, ...] = () if query is None else cast("StructType", type_info(query)).fields
    of = f"GET {path}"
    begun = {"from": 1, "limit": 1_000} if path == "/v1/events" else {}
    flags: list[dict[str, Any]] = [{each.encode_name: "true"} for each in fields if _is_flag(each)]
    then = [{"sequence": past}] if any(each.encode_name == "sequence" for each in fields) else []
    places = names.paths(path)
    for place in places:
        for asks in ({}, *flags, *then):
            yield Request("GET", place, begun | asks, accept, of=of)
    for each in fields:
        if not _is_flag(each) and each.encode_name not in {"sequence", "wait", "after", "min_sequence"}:
            asks = {each.encode_name: _word(each, names.values)}
            yield Request("GET", places[0], begun | asks, accept, of=of)


def _is_flag(field: Field) -> bool:
    return isinstance(field.type, BoolType)


def _word(field: Field, values: Mapping[str, Any]) -> Any:
    found: Any = _sample(field.type, field.encode_name, values)
    if found is None and isinstance(field.type, UnionType):
        found = _sample(field.type.types[-1], field.encode_name, values)
    return found


def acts(endpoints: Iterable[Endpoint], names: Names) -> Iterator[Request]:
    """Yield a request for each verb of the API."""
    for endpoint in endpoints:
        if endpoint.method == "GET" and endpoint.has_head:
            continue
        body = None
        if endpoint.body is not None:
            body = body_of(endpoint.body, names.values)
        elif endpoint.takes != JSON:
            body = {"to": "ann"}
        params = {"queue": "hall", "budget_s": "0.1"} if endpoint.path == "/v1/run" and body is None else {}
        if endpoint.path == "/v1/jobs/bulk":
            params = {"task": "send", "queue": "mail"}
        media = JSON if endpoint.takes == "*/*" else endpoint.takes
        paths = names.paths(endpoint.path)
        # Whoever may put a thing elsewhere would bring it here, with the body that all have.
        for path in paths[:1] if endpoint.method == "PUT" else paths:
            of = f"{endpoint.method} {endpoint.path}"
            yield Request(endpoint.method, path, params, JSON, body, media, of)


def sent_forms(forms: Iterable[Form], names: Names, filled: Mapping[str, Any]) -> Iterator[Request]:
    """Yield a request for each form; `filled`: every field that one of them reads."""
    for form in forms:
        for path in names.paths(form.path):
            yield Request("POST", path, {}, HTML, filled, FORM, f"FORM {form.path}")
