"""The table of endpoints as an OpenAPI 3.1 document: other languages generate their clients from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from jobledger.gateway.http.endpoint import JSON, Endpoint
from jobledger.gateway.http.headers import HEADERS
from jobledger.gateway.problems import KINDS, MEDIA, Problem
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.schema.events import field_notes

Schema = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"
_TOKEN: Final = "^[A-Za-z0-9_-]{1,64}$"
#: Patterns for words of a path that are not tokens: a limit, or one key of a limit.
_PATTERNS: Final = {"limit": r"^[A-Za-z0-9_-]{1,64}(:[^\s/]{1,128})?$"}
_REFERRED: Final = re.compile(re.escape(_REFERENCE.format(name="")) + r"(\w+)")
#: Problem codes of every endpoint that identifies its caller.
_ALWAYS: Final = (
    "BAD_REQUEST",
    "UNAUTHENTICATED",
    "JOB_ACCESS_DENIED",
    "RATE_LIMITED",
    "SHARE_USED",
    "BUSY",
    "LEDGER_UNREACHABLE",
    "INTERNAL",
)
_PUBLIC: Final = ("BAD_REQUEST",)
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


def openapi(endpoints: Iterable[Endpoint]) -> Schema:
    """Return the document of a table."""
    table = list(endpoints)
    schemas, components = _schemas(table)
    paths: dict[str, dict[str, Schema]] = {}
    for endpoint in table:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, schemas, components
        )
    queries = {endpoint.query.__name__ for endpoint in table if endpoint.query is not None}
    # A body may hold fields that other endpoints take as parameters.
    queries -= set(_REFERRED.findall(msgspec.json.encode((paths, components)).decode()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jobledger",
            "version": VERSION,
            "description": "Jobs, their whole past and everything that waits, over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(endpoint.tag for endpoint in table)],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in sorted(components.items()) if name not in queries},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `jobledger keys create`.",
                }
            },
        },
    }


def _schemas(table: Iterable[Endpoint]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return the schemas of all types that the table names, and of the types that these refer to."""
    kinds: list[Any] = [Problem]
    for endpoint in table:
        kinds += [each for each in (endpoint.body, endpoint.returns, endpoint.query) if each is not None]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_of_other, ref_template=_REFERENCE
    )
    for kind in _structs(kinds):
        _describe(components.get(kind.__name__), kind)
    return dict(zip(map(_key, kinds), schemas, strict=True)), components


def _key(kind: Any) -> str:
    return repr(kind)


def _of_other(kind: type) -> Schema:
    """Return the schema of a type that msgspec cannot describe: {} for values that are passed on as they are."""
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError  # as msgspec expects it for unknown types


def _structs(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Return every structure among some types and the fields of these."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found[info.cls] = None
            for field in info.fields:
                look(field.type)
        for name in ("item_type", "value_type", "key_type"):
            if (below := getattr(info, name, None)) is not None:
                look(below)
        for each in (*getattr(info, "types", ()), *getattr(info, "item_types", ())):
            look(each)

    for kind in kinds:
        look(msgspec.inspect.type_info(kind))
    return list(found)


def _describe(schema: Schema | None, kind: type[msgspec.Struct]) -> None:
    """Add the comments on the fields in the source of a class."""
    if schema is None:
        return
    notes = field_notes(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in notes and field.encode_name in schema.get("properties", {}):
            schema["properties"][field.encode_name] = {
                **schema["properties"][field.encode_name],
                "description": notes[field.name],
            }


def _operation(endpoint: Endpoint, schemas: Mapping[Any, Schema], components: Mapping[str, Schema]) -> Schema:
    operation: Schema = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_parameters(endpoint, components), *_headers(endpoint)],
        "responses": _responses(endpoint, schemas),
        "security": [] if endpoint.public else [{"key": []}],
    }
    if endpoint.permission is not None:
        operation["x-permission"] = endpoint.permission
    if endpoint.body is not None or endpoint.takes != JSON:
        schema = schemas[_key(endpoint.body)] if endpoint.body is not None else {}
        operation["requestBody"] = {
            "required": endpoint.needs_body,
            "content": {endpoint.takes: {"schema": schema}},
        }
    return operation


def operation_id(endpoint: Endpoint) -> str:
    """Return the name of an operation in generated clients, which is the name of its handler."""
    words = endpoint.handler.__name__.strip("_").split("_")
    if len(words) == 1 or words == ["list", "all"]:  # the name of the module says the rest
        words = [words[0], endpoint.handler.__module__.rpartition(".")[2]]
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _parameters(endpoint: Endpoint, components: Mapping[str, Schema]) -> list[Schema]:
    words = re.findall(r"\{(\w+)\}", endpoint.path)
    in_path = [
        {"name": word, "in": "path", "required": True, "schema": _word_of_path(word)} for word in words
    ]
    if endpoint.query is None:
        return in_path
    schema = components[endpoint.query.__name__]
    required = schema.get("required", ())
    return in_path + [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": {key: value for key, value in each.items() if key != "description"},
            **({"description": each["description"]} if "description" in each else {}),
        }
        for name, each in schema["properties"].items()
    ]


def _word_of_path(word: str) -> Schema:
    return {"type": "string", "pattern": _PATTERNS.get(word, _TOKEN)}


def _headers(endpoint: Endpoint) -> list[Schema]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": HEADERS[name].schema,
            "description": HEADERS[name].description,
        }
        for name in endpoint.heeds
    ]


def _responses(endpoint: Endpoint, schemas: Mapping[Any, Schema]) -> Schema:
    answer: Schema = {}
    if endpoint.returns is not None:
        answer = {"content": {endpoint.gives: {"schema": schemas[_key(endpoint.returns)]}}}
    elif endpoint.gives != JSON:
        answer = {"content": {endpoint.gives: {}}}
    unchanged = (HTTPStatus.NOT_MODIFIED,) if "If-None-Match" in endpoint.heeds else ()
    found = {
        str(int(status)): {
            "description": HTTPStatus(status).phrase,
            **({} if status in _WITHOUT_BODY else answer),
        }
        for status in (endpoint.status, *endpoint.also, *unchanged)
    }
    codes: dict[str, list[str]] = {}
    for code in dict.fromkeys((*_of_any(endpoint), *_no_past(endpoint), *endpoint.problems)):
        codes.setdefault(str(KINDS[code].status), []).append(code)
    problem = {MEDIA: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}}
    refusals = {
        status: {"description": ", ".join(sorted(names)), "content": problem}
        for status, names in sorted(codes.items())
        if status not in found
    }
    return {**found, **refusals}


def _of_any(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the problem codes that an endpoint may answer with before its own work."""
    if endpoint.public:
        return _PUBLIC
    denied = "JOB_ACCESS_DENIED" if endpoint.permission is None else ""
    return tuple(code for code in _ALWAYS if code != denied)


def _no_past(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the problem code for a request about the past to an endpoint that shows only the present."""
    asks = endpoint.method == "GET"
    has_past = endpoint.query is not None and "sequence" in endpoint.query.__struct_fields__
    return ("NO_PAST",) if asks and not has_past else ()
