"""A place to run what a scenario describes: a server, a gateway and workers, each started as the pages say."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.integration.conftest import Process
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.soundness import RowEnd


class Place:
    """An empty folder with programs of `jobledger`; everything else is asked over HTTP."""

    def __init__(self, folder: Path, row_end: RowEnd) -> None:
        self.folder = folder
        self._row_end = row_end
        self._processes: list[Process] = []
        server = self.start("server", "--port", "0", "--durability", "process", "--json")
        self._variables = {"JOBLEDGER_URL": server.line()["url"]}
        row_end.begins(self._variables["JOBLEDGER_URL"])
        self._gateway = ""
        self._account: dict[str, str] = {}

    _variables: dict[str, str] = {}  # noqa: RUF012 - until the server has an address

    def start(self, *words: str) -> Process:
        """Start a command; it is gone at the end of the test."""
        made = Process(self.folder, *words, variables=self._variables)
        self._processes.append(made)
        return made

    def gateway(self, app: str, **variables: str) -> None:
        """Start the gateway, which makes the ledger and announces what `app` has."""
        self._variables |= variables
        words = ("--port", "0", "--json", "--ledger-bytes-max", str(64 << 20))
        ready = self.start("gateway", "--app", app, *words).line()
        self._gateway, self._account = ready["gateway"], as_account(ready)

    def workers(self, app: str, *words: str) -> list[Process]:
        """Start two workers; return them when both are ready.

        Each is a fork that has its imports already. Those that a supervisor starts import them anew, which is most of
        what a walk would cost, to save a few seconds in which nothing but a lease expires.
        """
        made = [self.start("worker", "--app", app, "--json", *words) for _ in range(2)]
        for each in made:
            each.line()
        return made

    def ask(self, path: str, body: Any = None, *, method: str = "", **headers: str) -> tuple[int, Any]:
        """Return status and body of an answer; a body to send makes it a POST."""
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"{self._gateway}{path}",
            sent,
            {"content-type": "application/json", **self._account, **named},
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, _read(answer)
        except urllib.error.HTTPError as error:
            return error.code, _read(error)

    def ended(self, queue: str, job: str) -> tuple[int, Any]:
        """Wait for a job's end over HTTP; return with what status and body its result is answered."""

        def asked() -> tuple[int, Any] | None:
            status, value = self.ask(f"/v1/jobs/{queue}/{job}/result", prefer="wait=20")
            is_to_come = status in {202, 404}  # a schedule, a route or another job may have to make it first
            return None if is_to_come else (status, value)

        found: tuple[int, Any] = self.until(asked, f"job {job} ended")
        return found

    def result(self, queue: str, job: str) -> Any:
        """Wait for a job's end over HTTP; return its result."""
        status, value = self.ended(queue, job)
        assert status == 200, value
        return value

    def events(self, *chosen: str) -> list[dict[str, Any]]:
        """Return the ledger's events so far, of some types or all, as a reader of the stream gets them."""
        wanted = "".join(f"&type={each}" for each in chosen)
        _, lines = self.ask(f"/v1/events?from=1&limit=1000&wait=0{wanted}", accept="application/x-ndjson")
        return [json.loads(line) for line in lines.splitlines()]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Return what `holds` returns once that is true."""
        deadline = time.monotonic() + LIMIT_S
        pause_s = 0.05
        while not (found := holds()):
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, 0.5)  # each question costs the gateway CPU that others wait for
        return found

    def kill_who_wrote(self, name: str) -> None:
        """Kill the process that wrote its id into a file of the folder."""
        path = self.folder / name
        self.until(lambda: path.exists() and path.read_text(), f"{name} is written")
        os.kill(int(path.read_text()), signal.SIGKILL)

    def verify(self, workers: list[Process]) -> None:
        """Stop the workers in order, of which one was killed; the ledger is sound, also behind an archive run."""
        assert sorted(each.end(signal.SIGTERM) for each in workers) == [-signal.SIGKILL, 0]
        audit = self.start("audit", "verify", "--json")
        assert audit.end() == 0, (audit.rest(), audit.errors)
        anyio.run(self._row_end.holds)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.close()


def _read(answer: Any) -> Any:
    text = answer.read().decode()
    is_value = answer.headers.get_content_type() in ("application/json", "application/problem+json")
    return json.loads(text) if is_value else text


@pytest.fixture
def place(tmp_path: Path, nats_server_binary: str, row_end: RowEnd) -> Iterator[Place]:
    made = Place(tmp_path, row_end)
    yield made
    made.close()
