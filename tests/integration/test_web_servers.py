"""Applications under real web servers: connections made before a fork, and the programs of docs/web.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio.from_thread
import anyio.to_thread
import pytest
from tests.conftest import ServerFactory
from tests.support.limits import LIMIT_S
from tests.support.pages import save_programs
from tests.support.ports import kept_port
from tests.support.proxy import Proxy

from jobledger.ledger.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
COUNT = 40
WORKERS = 2

Serve = Callable[..., tuple[subprocess.Popen[bytes], str]]


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
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a web server in a folder; return it with its address once it answers. What it says is shown on failure."""
    made: list[subprocess.Popen[bytes]] = []
    said = tmp_path / "said"

    def begin(folder: Path, variables: dict[str, str], *words: str) -> tuple[subprocess.Popen[bytes], str]:
        port = kept_port()
        environment = {
            **os.environ,
            **variables,
            "HOME": str(tmp_path),  # where gunicorn keeps a socket of its own
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # uWSGI may be of another environment
        }
        with said.open("wb") as sink:
            command = [word.replace("PORT", str(port)) for word in words]
            child = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT
            )
        made.append(child)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + LIMIT_S
        while not _answers(f"{url}/"):
            assert child.poll() is None, said.read_text(errors="replace")
            assert time.monotonic() < deadline, said.read_text(errors="replace")
            time.sleep(0.02)
        return child, url

    yield begin
    for child in made:
        child.kill()
        child.wait(LIMIT_S)
    if said.exists():
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
def test_a_connection_made_before_gunicorn_forks_serves_every_worker(
    serve: Serve, nats_server: EmbeddedServer, environment: str, worker_class: str
) -> None:
    words = ["-m", "gunicorn", "--preload", "--workers", str(WORKERS), "--worker-class", worker_class]
    threads = ["--threads", "8"] if worker_class == "gthread" else []
    variables = {"JOBLEDGER_URL": nats_server.url, "LEDGER_ENVIRONMENT": environment}
    program = [sys.executable, *words, *threads, "--bind", "127.0.0.1:PORT", "preloaded:app"]
    server, url = serve(APPS, variables, *program)
    pids = _use(url)
    assert len(pids) == WORKERS
    assert str(server.pid) not in pids
    began = time.monotonic()
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
    assert time.monotonic() - began < 10  # gunicorn kills after 30 s; alone on a machine it is below one


@pytest.mark.fault
def test_a_connection_made_before_uwsgi_forks_serves_every_worker(
    serve: Serve, nats_server: EmbeddedServer, environment: str
) -> None:
    """Set UWSGI to a program that is not on the path."""
    uwsgi = shutil.which(os.environ.get("UWSGI", "uwsgi"))
    if uwsgi is None:
        pytest.skip("uwsgi is not installed: pip install pyuwsgi")
    server, url = serve(
        APPS,
        {"JOBLEDGER_URL": nats_server.url, "LEDGER_ENVIRONMENT": environment},
        *(uwsgi, "--master", "--processes", str(WORKERS), "--threads", "4", "--enable-threads"),
        *("--http-socket", "127.0.0.1:PORT", "--module", "preloaded:app", "--die-on-term", "--need-app"),
    )
    pids = _use(url)
    assert len(pids) == WORKERS
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0


# The programs of docs/web.md.

GUNICORN = ("-m", "gunicorn", "--preload", "--workers", "2", "--threads", "8", "--bind", "127.0.0.1:PORT")
SERVED = {
    "fastapi": ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "PORT", "fastapi_shop:app"),
    "flask": (*GUNICORN, "flask_shop:app"),
    "django": (*GUNICORN, "shop.site:application"),
}
# The project that the page's Django program is a part of.
PROJECT = {
    "__init__.py": "",
    "models.py": """
from django.db import models

class Order(models.Model): ...
""",
    "site.py": """
import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    SECRET_KEY="of a test",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["shop"],
    MIDDLEWARE=["django_shop.LedgerErrors"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
)
django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

import django_shop

urlpatterns = [
    path("orders/<int:order>", django_shop.place_order),
    path("jobs/<str:job_id>", django_shop.job_state),
]
application = get_wsgi_application()
""",
}


def _status(url: str, *, post: bool = False) -> tuple[int, dict[str, str], str | None]:
    """Return status, body and the header Retry-After."""
    request = urllib.request.Request(url, data=b"" if post else None)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, json.loads(answer.read()), answer.headers["Retry-After"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error.headers["Retry-After"]


def _programs(folder: Path) -> None:
    """Save the page's programs under the names that it gives them, and the Django project around one of them."""
    page = ROOT / "docs" / "web.md"
    count = save_programs(page, folder)
    assert count == page.read_text(encoding="utf-8").count("```python") == len(SERVED) + 1
    (folder / "shop").mkdir()
    for name, text in PROJECT.items():
        (folder / "shop" / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("framework", SERVED)
async def test_the_programs_of_the_page_on_web_applications_keep_its_table(
    serve: Serve, server_factory: ServerFactory, tmp_path: Path, framework: str
) -> None:
    server = server_factory()
    await server.start()
    _programs(tmp_path)
    async with Proxy(server.port) as proxy:  # where the server can fall silent between two requests
        variables = {"JOBLEDGER_URL": proxy.url}
        words = (sys.executable, *SERVED[framework])
        child, url = await anyio.to_thread.run_sync(lambda: serve(tmp_path, variables, *words))
        await anyio.to_thread.run_sync(_keeps_the_table, url, proxy)
        if framework == "django":
            found = await anyio.to_thread.run_sync(lambda: _program(SWEEP, tmp_path, variables))
            assert found == "1 0"
        child.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(lambda: child.wait(LIMIT_S)) in {0, -signal.SIGTERM}


UNCONNECTED = "did not answer in time"  # said by a worker process that had nothing to do so far
SWEEP = (
    "import shop.site; from django_shop import *; Order.objects.create(id=9);"
    "print(enqueue_missing(), enqueue_missing())"
)


def _keeps_the_table(url: str, proxy: Proxy) -> None:
    for _ in range(2):
        assert _status(f"{url}/orders/7", post=True) == (202, {"job": "receipt-7"}, None)
    assert _status(f"{url}/jobs/receipt-7") == (200, {"state": "queued"}, None)
    status, said, _ = _status(f"{url}/jobs/nobody")
    assert (status, "no job 'nobody' is in the ledger" in said["error"]) == (404, True)
    assert _status(f"{url}/jobs/a.b")[0] == 422
    anyio.from_thread.run_sync(proxy.hold)
    try:
        status, said, again = _status(f"{url}/orders/8", post=True)
        assert (status, again) == (503, "5")
        assert re.search(f"not known whether job receipt-8 was enqueued|{UNCONNECTED}", said["error"])
        status, said, again = _status(f"{url}/jobs/receipt-7")
        assert (status, again) == (503, "5")
        assert re.search(f"the server gave no answer within 3 s|{UNCONNECTED}", said["error"])
    finally:
        anyio.from_thread.run_sync(proxy.release)
    assert _status(f"{url}/orders/8", post=True)[0] == 202
    assert _status(f"{url}/jobs/receipt-8") == (200, {"state": "queued"}, None)


def _program(text: str, folder: Path, variables: dict[str, str]) -> str:
    """Run a program in a folder; it must say nothing but what it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.strip()
