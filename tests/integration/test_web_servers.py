"""A connection that is made before gunicorn or uWSGI fork serves every worker, and stops when they are told to."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.limits import LIMIT_S

from jobledger.ledger.server import EmbeddedServer

APPS = Path(__file__).parent / "apps"
COUNT = 40
WORKERS = 2

Serve = Callable[..., tuple[subprocess.Popen[bytes], str]]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _ask(url: str, *, post: bool = False) -> str:
    request = urllib.request.Request(url, data=b"" if post else None)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        text: bytes = answer.read()
    return text.decode()


def _post(url: str) -> str:
    return _ask(url, post=True)


def _answers(url: str) -> bool:
    try:
        _ask(url)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def serve(nats_server: EmbeddedServer, environment: str, tmp_path: Path) -> Iterator[Serve]:
    """Start a web server; return it with its address once it answers. What it says is shown when a test fails."""
    made: list[subprocess.Popen[bytes]] = []
    said = tmp_path / "said"

    def begin(*words: str) -> tuple[subprocess.Popen[bytes], str]:
        address = f"127.0.0.1:{_free_port()}"
        variables = {"JOBLEDGER_URL": nats_server.url, "LEDGER_ENVIRONMENT": environment}
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, sys.path)
        )  # uWSGI may be of another environment
        with said.open("wb") as sink:
            command = [word.replace("ADDRESS", address) for word in words]
            child = subprocess.Popen(
                command, cwd=APPS, env={**os.environ, **variables}, stdout=sink, stderr=subprocess.STDOUT
            )
        made.append(child)
        deadline = time.monotonic() + LIMIT_S
        while not _answers(f"http://{address}/"):
            assert child.poll() is None, said.read_text(errors="replace")
            assert time.monotonic() < deadline, said.read_text(errors="replace")
            time.sleep(0.02)
        return child, f"http://{address}"

    yield begin
    for child in made:
        child.kill()
        child.wait(LIMIT_S)
    sys.stderr.write(said.read_text(errors="replace"))


def _use(url: str) -> set[str]:
    """Ask from many threads at once, until every worker has answered; return the pids of the workers."""
    pids: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    begun = 0
    with ThreadPoolExecutor(16) as pool:
        while begun < COUNT or len(pids) < WORKERS:
            assert time.monotonic() < deadline, pids
            names = [f"{url}/job-{number}" for number in range(begun, begun + COUNT)]
            answers = [answer.split() for answer in pool.map(_post, names)]
            assert {created for _, created in answers} == {"True"}
            pids |= {pid for pid, _ in answers}
            begun += COUNT
    assert _ask(f"{url}/job-7") == "queued"
    return pids


@pytest.mark.parametrize("worker_class", ["sync", "gthread"])
def test_a_connection_made_before_gunicorn_forks_serves_every_worker(serve: Serve, worker_class: str) -> None:
    words = ["-m", "gunicorn", "--preload", "--workers", str(WORKERS), "--worker-class", worker_class]
    threads = ["--threads", "8"] if worker_class == "gthread" else []
    server, url = serve(sys.executable, *words, *threads, "--bind", "ADDRESS", "preloaded:app")
    pids = _use(url)
    assert len(pids) == WORKERS
    assert str(server.pid) not in pids
    began = time.monotonic()
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
    assert time.monotonic() - began < 10  # gunicorn kills after 30 s; alone on a machine it is below one


@pytest.mark.fault
def test_a_connection_made_before_uwsgi_forks_serves_every_worker(serve: Serve) -> None:
    """Set UWSGI to a program that is not on the path."""
    uwsgi = shutil.which(os.environ.get("UWSGI", "uwsgi"))
    if uwsgi is None:
        pytest.skip("uwsgi is not installed: pip install pyuwsgi")
    server, url = serve(
        *(uwsgi, "--master", "--processes", str(WORKERS), "--threads", "4", "--enable-threads"),
        *("--http-socket", "ADDRESS", "--module", "preloaded:app", "--die-on-term", "--need-app"),
    )
    pids = _use(url)
    assert len(pids) == WORKERS
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
