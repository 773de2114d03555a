"""Run what a compose file says as plain processes, where no container runtime is, and use it once.

    python deploy/run_compose.py deploy/compose.yaml [--folder FOLDER]

The file's own commands, environment, order, health checks and times to stop are used: nats-server, jobledger and python are
taken from this Python's environment, names of services become 127.0.0.1, their ports free ones, and their folders
some in FOLDER, which is kept between runs if it is named. Services with a profile are left out. When all are healthy a
job is added over HTTP with the first key, its result is asked for, and all services are stopped: the exit code is 0 if
each stopped with 0 in its time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PORT = re.compile(r"\b(4222|6222|8222|8080|9464)\b")
GIVEN = {"JOBLEDGER_PASSWORD": "p4c1", "JOBLEDGER_ROUTE_PASSWORD": "p4c2", "JOBLEDGER_APP": "app"}
APP = """
from jobledger.ledger import task

@task(queue="mail")
async def send_receipt(order: int) -> str:
    return f"receipt {order}"
"""
#: Commands are jobledger's unless the image is another one.
PROGRAMS = {"nats": "nats-server"}


class Services:
    """The services of one file, started in their order and stopped in the other one."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file = file
        self._folder = folder
        said = yaml.safe_load(_filled(file.read_text(encoding="utf-8")))
        self._services: dict[str, dict[str, Any]] = {
            name: each for name, each in said["services"].items() if "profiles" not in each
        }
        self._ports: dict[tuple[str, str], str] = {}
        self._made: set[Path] = set()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "app").mkdir(parents=True, exist_ok=True)
        (folder / "app" / "app.py").write_text(APP, encoding="utf-8")

    def start(self) -> None:
        """Start each when what it depends on is healthy, or has ended well. Raises: SystemExit."""
        waiting = dict(self._services)
        done: set[str] = set()
        while waiting:
            ready = [name for name, each in waiting.items() if done.issuperset(each.get("depends_on", ()))]
            if not ready:
                sys.exit(
                    f"{self._file}: {', '.join(waiting)} wait for each other, or for a service that is not there"
                )
            for name in ready:
                self._begin(name)
            for name in ready:
                self._wait(name)
                done.add(name)
                del waiting[name]

    def stop(self) -> list[str]:
        """Stop all that run; return what went wrong, a sentence each."""
        wrong: list[str] = []
        for name, process in reversed(self._running.items()):
            if process.poll() is not None:
                continue
            limit_s = _seconds(self._services[name].get("stop_grace_period", "10s"))
            process.send_signal(getattr(signal, self._services[name].get("stop_signal", "SIGTERM")))
            began = time.monotonic()
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
                wrong.append(f"{name} had not stopped after {limit_s:g} s")
            if code:
                wrong.append(f"{name} stopped with {code}: {self._last(name)}")
            print(f"{name} stopped with {code} after {time.monotonic() - began:.1f} s", flush=True)
        return wrong

    def use(self) -> None:
        """Add a job over HTTP, and ask for its result. Raises: SystemExit."""
        key = self._path("gateway", "/var/lib/jobledger/first.key").read_text(encoding="utf-8").strip()
        base = f"http://127.0.0.1:{self._port('gateway', '8080')}"

        def call(path: str, body: Any = None, **headers: str) -> Any:
            sent = None if body is None else json.dumps(body).encode()
            named = {"content-type": "application/json", "authorization": f"Bearer {key}", **headers}
            with urllib.request.urlopen(
                urllib.request.Request(base + path, sent, named), timeout=30
            ) as answer:
                return json.loads(answer.read())

        made = call("/v1/jobs", {"task": "send_receipt", "input": {"order": 7}, "id": "receipt-7"})
        result = call("/v1/jobs/mail/receipt-7/result", prefer="wait=20")
        print(
            f"job receipt-7 {'was made' if made['created'] else 'was there already'}; result: {result}",
            flush=True,
        )
        if "receipt 7" not in json.dumps(result):
            sys.exit("that is not the job's result")

    # One service.

    def _begin(self, name: str) -> None:
        command = [self._here(name, word) for word in self._services[name].get("command", [])]
        program = PROGRAMS.get(self._services[name]["image"].partition(":")[0], "jobledger")
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [_program(program), *command], env=self._environment(name), cwd=self._folder / "app",
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _wait(self, name: str) -> None:
        process, check = self._running[name], self._services[name].get("healthcheck")
        began = time.monotonic()
        if check is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if process.poll() != 0:
                sys.exit(f"{name} failed: {self._last(name)}")
            print(f"{name} has ended well after {time.monotonic() - began:.1f} s", flush=True)
            return
        command = [self._here(name, word) for word in check["test"][1:]]
        until = began + _seconds(check["interval"]) * check["retries"]
        said = ""
        while True:
            if process.poll() is not None:
                sys.exit(f"{name} ended with {process.returncode}: {self._last(name)}")
            if time.monotonic() >= until:
                break
            try:
                asked = subprocess.run(
                    [_program(command[0]), *command[1:]], env=self._environment(name), capture_output=True, check=False,
                    timeout=_seconds(check["timeout"]) + 5.0,
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                said = str(late)
                continue
            if asked.returncode == 0:
                print(f"{name} is healthy after {time.monotonic() - began:.1f} s", flush=True)
                return
            said = (asked.stdout + asked.stderr).decode()[-300:]
            time.sleep(0.2)
        sys.exit(f"{name} does not get healthy: {said} {self._last(name)}")

    def _environment(self, name: str) -> dict[str, str]:
        said = {
            key: self._here(name, str(value))
            for key, value in self._services[name].get("environment", {}).items()
        }
        own = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self._folder)}
        return {**own, "XDG_DATA_HOME": str(self._path(name, "/var/lib/jobledger")), **said}

    # What stands for a container's names, ports and folders.

    def _here(self, name: str, text: str) -> str:
        """Return a word of a service as it is on this machine."""
        return self._with_folders(name, self._with_ports(name, text))

    def _with_ports(self, name: str, text: str) -> str:
        for other in self._services:
            there = re.compile(rf"(?<=[/@]){other}:(\d+)")
            text = there.sub(lambda found, of=other: f"127.0.0.1:{self._port(of, found[1])}", text)
        return PORT.sub(lambda found: self._port(name, found[1]), text).replace("0.0.0.0", "127.0.0.1")

    def _with_folders(self, name: str, text: str, but: str = "") -> str:
        for inside in self._volumes(name):
            if inside != but:
                text = text.replace(inside, str(self._path(name, inside)))
        return text

    def _port(self, name: str, port: str) -> str:
        if port in {each for (_, _), each in self._ports.items()}:
            return port  # it is one of this machine already
        if (name, port) not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[name, port] = str(probe.getsockname()[1])
        return self._ports[name, port]

    def _volumes(self, name: str) -> Iterator[str]:
        yield from (each.split(":")[1] for each in self._services[name].get("volumes", []))

    def _path(self, name: str, inside: str) -> Path:
        """Return what a path in a container is here: a file of the project with its ports changed, or a folder."""
        for each in self._services[name].get("volumes", []):
            source, target = each.split(":")[:2]
            if not inside.startswith(target):
                continue
            rest = inside.removeprefix(target).lstrip("/")
            if not source.startswith("."):
                folder = self._folder / "volumes" / source
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                return folder / rest
            if (origin := self._file.parent / source).is_file():
                made = self._folder / f"{name}-{origin.name}"
                if made in self._made:  # a program may be reading it
                    return made
                self._made.add(made)
                text = self._with_ports(name, origin.read_text(encoding="utf-8"))
                made.write_text(self._with_folders(name, text, but=inside), encoding="utf-8")
                return made
            return self._folder / "app" / rest
        own = self._folder / name
        own.mkdir(parents=True, exist_ok=True)
        return own

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last(self, name: str) -> str:
        return self._log(name).read_text(encoding="utf-8", errors="replace")[-500:]


def _filled(text: str) -> str:
    """Put variables in, as compose does. Raises: SystemExit for one that has to be set."""

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1]) or GIVEN.get(found[1])
        if known is None and found[2] == "?":
            sys.exit(f"{found[1]}: {found[3]}")
        return known if known is not None else (found[3] or "")

    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", value, text)


def _seconds(span: str) -> float:
    return float(span[:-1]) * {"s": 1, "m": 60}[span[-1]]


def _program(name: str) -> str:
    """Return a program of this Python's environment, or else of the machine."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def main() -> int:
    """Start, use and stop; return 1 where a service did not stop in good order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--folder", type=Path, help="where stores and logs go; kept (default: a new one, removed)"
    )
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        services = Services(given.file, folder.resolve())
        wrong: list[str] = []
        try:
            services.start()
            services.use()
        finally:
            wrong = services.stop()
            print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
