"""The command line, run in the test's own process on an environment of the test's own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.support.loops import run_in_loop

from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect

T = TypeVar("T")


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """Runs commands, and functions on the ledger that they see."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], environment: str | None = None) -> None:
        self.url = url
        self.environment = environment or f"t_{secrets.token_hex(6)}"
        self.where = ("--url", url, "--environment", self.environment)
        self._capsys = capsys

    def run(self, *words: str) -> Answer:
        """Run a command as it stands; what was printed before it is dropped."""
        self._capsys.readouterr()
        code = run(words)
        shown = self._capsys.readouterr()
        return Answer(code, shown.out, shown.err)

    def make_ledger(self) -> None:
        """Make the ledger, as the first enqueue would; it has no event."""

        async def nothing(_ledger: Ledger) -> None: ...

        self.with_ledger(nothing)

    def with_ledger(self, function: Callable[[Ledger], Awaitable[T]]) -> T:
        """Call with a client; the first call makes the streams, small ones."""

        async def call() -> T:
            async with connect(self.url, environment=self.environment, ledger_bytes_max=16 << 20) as ledger:
                return await function(ledger)

        return run_in_loop(call)
