"""`jobledger events schema` and `asyncapi`: the form of stored events, for other languages. Needs no server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.groups import EVENTS
from jobledger.cli.output import Output
from jobledger.ledger.schema.asyncapi import asyncapi_document
from jobledger.ledger.schema.events import all_events_schema, event_schema


@command(EVENTS, "schema", takes=OFFLINE)
def schema(
    cli: Cli,
    *,
    event_type: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help="The type of event. (default: one schema for all)"),
    ] = None,
) -> None:
    """Print the JSON Schema of one type of event, or of all; with --json on one line."""
    _print(all_events_schema() if event_type is None else event_schema(event_type), cli.output)


@command(EVENTS, "asyncapi", takes=OFFLINE)
def asyncapi(cli: Cli) -> None:
    """Print the AsyncAPI document of subjects and events; with --json on one line."""
    _print(asyncapi_document(), cli.output)


def _print(document: dict[str, Any], output: Output) -> None:
    if output.as_json:
        output.raw(json.dumps(document, ensure_ascii=True, separators=(",", ":")))
    else:
        for line in json.dumps(document, ensure_ascii=True, indent=2).splitlines():
            output.raw(line)
