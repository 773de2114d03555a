"""What commands answer with `--json`, and the HTTP API beside them, as shapes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from string import Template
from typing import Any, Final

import anyio
from tests.golden.conftest import Recorded
from tests.golden.questions import QUESTIONS, Question
from tests.golden.shapes import is_list, is_map, merged, shape_of
from tests.golden.world import GRAPH, ROUTE
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.program import PROGRAM

from jobledger.cli.commands import named_by
from jobledger.gateway.http.endpoint import JSON, NDJSON

_SAME: Final = "as the command"
_BYTES: Final = str(16 << 20)


def _beside(shape: Any, own: Any) -> Any:
    """Return a shape of the API, with one word in place of what is the same as the command's own."""
    if is_map(shape) and shape == own:
        return _SAME
    if is_map(shape):
        return {name: _beside(value, own) for name, value in shape.items()}
    return [_beside(each, own) for each in shape] if is_list(shape) else shape


def answers(recorded: Recorded, cli: CommandLine, folder: Path) -> dict[str, Any]:
    """Ask every question; return by the words of each what the command and the API answered."""
    Path(folder, "graph.json").write_text(json.dumps({**GRAPH, "name": "other"}), encoding="utf-8")
    asking = _Asking(recorded, cli, folder)
    return {each.words: asking.both(each) for each in QUESTIONS}


class _Asking:
    def __init__(self, recorded: Recorded, cli: CommandLine, folder: Path) -> None:
        self._recorded = recorded
        self._cli = cli
        self._root: Any = PROGRAM
        self._names = {**recorded.names, "environment": recorded.environment}
        self._words: dict[str, Any] = {
            "$nodes": GRAPH["nodes"],
            "$route": ROUTE,
            "$long_ago": "2026-01-01T00:00:00Z",
        }
        self._shared = {
            "--url": recorded.url,
            "--environment": recorded.environment,
            "--projection": str(folder / "rows.db"),
            "--ledger-bytes-max": _BYTES,
        }

    def both(self, question: Question) -> dict[str, Any]:
        """Return what a command answered, and beside it what the API did."""
        told = self._command(question.words)
        if question.http:
            own = told.get("answer")
            told["http"] = {
                name: _beside(value, own) for name, value in self._http(question.http, question.body).items()
            }
        return told

    def _command(self, words: str) -> dict[str, Any]:
        """Return the exit code of a command, and the shape of its answer, or of one line of its list."""
        given = shlex.split(Template(words).substitute(self._names))
        known = self._options(given)
        shared = [
            word
            for name, value in self._shared.items()
            if name in known and name not in given
            for word in (name, value)
        ]
        found = self._cli.run(*given, *shared, "--json")
        lines = (found.out if found.code == 0 or found.out else found.err).splitlines()
        told = [json.loads(line) for line in lines if line.startswith(("{", "["))]
        assert told or not lines, f"{words}: {found}"
        shapes = {"exit": found.code}
        return shapes | ({"answer": merged(shape_of(each) for each in told)} if told else {})

    def _options(self, words: list[str]) -> set[str]:
        command = self._root
        for name in named_by(words):
            command = command.commands[name]
        return {name for each in command.params for name in each.opts}

    def _http(self, asked: str, body: Any) -> dict[str, Any]:
        """Return the status of a request, and the shape of its answer."""
        method, _, path = asked.partition(" ")
        path = Template(path).substitute(self._names)

        async def ask() -> Any:
            # Events are streamed for ever to who does not ask for lines.
            heads = {"accept": NDJSON if path.startswith("/v1/events") else JSON}
            with anyio.fail_after(LIMIT_S):
                return await self._recorded.http.request(method, path, json=self._filled(body), headers=heads)

        found = self._recorded.portal.call(ask)
        is_list = found.headers.get("content-type", "") == NDJSON
        texts = found.text.splitlines() if is_list else [found.text] if found.text else []
        lines = [json.loads(text) for text in texts]
        told = {"request": asked, "status": found.status_code}
        return told | ({"answer": merged(shape_of(each) for each in lines)} if lines else {})

    def _filled(self, body: Any) -> Any:
        if is_map(body):
            return {name: self._filled(value) for name, value in body.items()}
        return self._words.get(body, body) if isinstance(body, str) else body
