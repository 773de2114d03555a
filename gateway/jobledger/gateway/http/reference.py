"""The page `/docs`: the OpenAPI document for a person to read, without scripts or files from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]
_REFERENCE: Final = "#/components/schemas/"
_HEAD: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>jobledger: HTTP API</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="stylesheet" href="/static/docs.css"></head><body><main>'
)
_FOOT: Final = "</main></body></html>"


def reference(document: Schema) -> str:
    """Return the page."""
    return "".join((_HEAD, *_body(document), _FOOT))


def _body(document: Schema) -> Iterator[str]:
    info = document["info"]
    yield f"<h1>{_text(info['title'])} {_text(info['version'])}: HTTP API</h1><p>{_text(info['description'])} "
    yield 'The same for programs: <a href="/openapi.json">/openapi.json</a>.</p><nav><ul>'
    for tag in document["tags"]:
        yield f'<li><a href="#{_name(tag["name"])}">{_text(tag["name"])}</a></li>'
    yield '<li><a href="#schemas">structures</a></li></ul></nav>'
    for tag in document["tags"]:
        yield f'<h2 id="{_name(tag["name"])}">{_text(tag["name"])}</h2>'
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(method, path, operation)
    yield '<h2 id="schemas">structures</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield from _structure(name, schema)


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f'<section id="{_text(operation["operationId"])}"><h3><code>{method.upper()} {_text(path)}</code></h3>'
    yield f"<p>{_text(operation['summary'])}."
    if "x-permission" in operation:
        yield f" Needs the permission <code>{_text(operation['x-permission'])}</code>."
    yield "</p>"
    parameters = [each for each in operation["parameters"] if each["in"] == "query"]
    if parameters:
        rows = ((each["name"], each["schema"], each.get("description", "")) for each in parameters)
        yield from _table(("parameter", "type", "meaning"), rows)
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body: <code>{_text(media)}</code>, {_type(content.get('schema', {}))}</p>"
    yield "<ul>"
    for status, answer in operation["responses"].items():
        kinds = [_type(each.get("schema", {})) for each in answer.get("content", {}).values()]
        yield f"<li><code>{_text(status)}</code> {_text(answer['description'])}{': ' if kinds else ''}{', '.join(kinds)}</li>"
    yield "</ul></section>"


def _structure(name: str, schema: Schema) -> Iterator[str]:
    yield f'<section id="{_name(name)}"><h3><code>{_text(name)}</code></h3><p>{_text(schema.get("description", ""))}</p>'
    fields = schema.get("properties", {})
    if fields:
        yield from _table(
            ("field", "type", "meaning"),
            ((field, each, each.get("description", "")) for field, each in fields.items()),
        )
    yield "</section>"


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, Schema, str]]) -> Iterator[str]:
    yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>"
    for name, schema, meaning in rows:
        yield f"<tr><td><code>{_text(name)}</code></td><td>{_type(schema)}</td><td>{_text(meaning)}</td></tr>"
    yield "</tbody></table>"


def _type(schema: Schema) -> str:
    """Return the type of a value in a few words."""
    reference_ = str(schema.get("$ref", ""))
    if reference_:
        name = reference_.removeprefix(_REFERENCE)
        return f'<a href="#{_name(name)}">{_text(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"<code>{_text(each)}</code>" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}"
    return _text(schema.get("format") or schema.get("type") or "any value")


def _text(value: object) -> str:
    return html.escape(str(value))


def _name(name: str) -> str:
    return html.escape(name.replace(" ", "-"))
