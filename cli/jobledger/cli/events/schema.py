"""`jobledger events schema` and `asyncapi`: what is stored, for readers in other languages. Needs no server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from jobledger.cli import options
from jobledger.cli.output import Output
from jobledger.ledger.schema.asyncapi import asyncapi_document
from jobledger.ledger.schema.events import all_events_schema, event_schema


def add_to(app: typer.Typer) -> typer.Typer:
    """Add the commands to `jobledger events`."""
    app.command("schema")(schema)
    app.command("asyncapi")(asyncapi)
    return app


def schema(
    event_type: Annotated[
        str | None,
        typer.Argument(metavar="[TYPE]", help="The type of event. (default: one schema for all)"),
    ] = None,
    *,
    as_json: options.Json = False,
) -> None:
    """Print the JSON Schema of one type of event, or of all; with --json on one line."""
    _print(all_events_schema() if event_type is None else event_schema(event_type), as_json=as_json)


def asyncapi(*, as_json: options.Json = False) -> None:
    """Print the AsyncAPI document of subjects and events; with --json on one line."""
    _print(asyncapi_document(), as_json=as_json)


def _print(document: dict[str, Any], *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    if as_json:
        output.raw(json.dumps(document, ensure_ascii=True, separators=(",", ":")))
    else:
        for line in json.dumps(document, ensure_ascii=True, indent=2).splitlines():
            output.raw(line)
