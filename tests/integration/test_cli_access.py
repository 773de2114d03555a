"""Credentials and certificates on the command line and in the environment: the words of `connect`, and no secret seen."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.integration.conftest import Process
from tests.support.secured import Authority, Secured, new_key, secured, tls

from jobledger.cli.main import run
from jobledger.ledger import Ledger, LedgerConfig, connect
from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.nats.access import NAMES, Access, from_variables

pytestmark = pytest.mark.anyio
SECRET = "s3cret-word"
TASKS = """
from jobledger.ledger import task

@task(queue="work")
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def server(nats_server_binary: str, tmp_path: Path) -> Iterator[Secured]:
    """Wants TLS with a certificate of the client's, and a password."""
    authority = Authority(tmp_path)
    own = authority.issue()
    own.cert.rename(tmp_path / "own.pem")
    own.key.rename(tmp_path / "own.key")
    (tmp_path / "word").write_text(SECRET + "\n")
    (tmp_path / "apptasks.py").write_text(TASKS)
    text = (
        tls(authority.issue("127.0.0.1"), authority.ca)
        + f"authorization {{ user: app, password: {SECRET} }}\n"
    )
    with secured(nats_server_binary, tmp_path / "server", text) as running:
        yield running


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "CONTEXT", *(name.upper() for name in NAMES)):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("JOBLEDGER_LEDGER_BYTES_MAX", str(16 << 20))
    monkeypatch.chdir(tmp_path)


TLS = ("--tls-ca", "ca.pem", "--tls-cert", "own.pem", "--tls-key", "own.key")
LOGIN = ("--user", "app", "--password-file", "word")


def variables(*words: str) -> dict[str, str]:
    """Return the same as an environment."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {f"JOBLEDGER_{option.strip('-').replace('-', '_').upper()}": value for option, value in pairs}


def test_every_command_takes_them_by_option_and_by_environment(
    server: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--url", server.url("tls"))
    assert run(["enqueue", "add", "a=1", "b=2", "--id", "one", "--app", "apptasks", *at, *TLS, *LOGIN]) == 0
    for words in (
        ["jobs", "show", "one"],
        ["jobs", "list"],
        ["workers", "list"],
        ["audit", "verify"],
        ["doctor"],
    ):
        # `doctor` fails since a job waits and no worker serves its queue.
        assert run([*words, *at, *TLS, *LOGIN]) == (words == ["doctor"]), words
    assert SECRET not in "".join(capsys.readouterr())
    with monkeypatch.context() as environment:
        for name, value in variables(*at, *TLS, "--user", "app", "--password", SECRET).items():
            environment.setenv(name, value)
        assert run(["jobs", "show", "one"]) == 0
        environment.setenv("JOBLEDGER_PASSWORD", f"not-{SECRET}")
        for words in (["jobs", "show", "one"], ["doctor"], ["doctor", "--json"]):
            capsys.readouterr()
            assert run(words) == 5
            said = "".join(capsys.readouterr())
            assert ("refused the credentials: check user and password" in said, SECRET in said) == (
                True,
                False,
            )
    assert run(["jobs", "show", "one", *at, *TLS]) == 5
    assert "refused the credentials" in capsys.readouterr().err


def _context(folder: Path, url: str) -> Path:
    """Write a context as the `nats` command does; return where contexts lie."""
    place = folder / "config" / "nats" / "context"
    place.mkdir(parents=True)
    said = {"description": "ours", "url": url, "user": "app", "password": SECRET, "creds": ""}
    files = {"ca": folder / "ca.pem", "cert": folder / "own.pem", "key": folder / "own.key"}
    text = json.dumps({**said, **{name: str(path) for name, path in files.items()}})
    (place / "ours.json").write_text(text)
    return folder / "config"


async def test_a_context_of_the_nats_command_is_server_and_credentials(
    server: Secured, command: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(_context(tmp_path, server.url("tls"))))
    async with connect(context="ours", ledger_bytes_max=16 << 20) as ledger:
        assert ledger.config.url == server.url("tls")
    monkeypatch.setenv("JOBLEDGER_CONTEXT", "ours")
    async with connect(create=False):
        pass
    named = {"JOBLEDGER_CONTEXT": "ours"}
    worker = command("worker", "--app", "apptasks", "--processes", "2", "--json", variables=named)
    await anyio.to_thread.run_sync(worker.line)
    async with connect(create=False) as ledger:
        assert len(await _pids(ledger)) == 2
    assert await anyio.to_thread.run_sync(worker.end, signal.SIGTERM) == 0


def test_a_context_is_named_before_a_command_or_behind_it(
    server: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(_context(tmp_path, server.url("tls"))))
    monkeypatch.setenv("JOBLEDGER_URL", "nats://127.0.0.1:1")
    assert run(["--context", "ours", "enqueue", "add", "a=1", "b=2", "--id", "one", "--app", "apptasks"]) == 0
    for words in (
        ["jobs", "show", "one", "--context", "ours"],
        ["--context=ours", "jobs", "list"],
        ["--environment", "none", "--context", "ours", "init"],
    ):
        assert run(words) == 0, words
    assert "jobledger doctor --context ours" in capsys.readouterr().out
    with monkeypatch.context() as environment:
        environment.setenv("JOBLEDGER_CONTEXT", "ours")
        for words, code, told in (
            (["jobs", "list"], 2, "each name a server: leave one of them out"),
            (["jobs", "list", "--url", server.url("tls")], 5, "only clients with a certificate"),
            (["jobs", "list", "--url", server.url("tls"), "--context", "ours"], 2, "each name a server"),
        ):
            assert run(words) == code, words
            assert told in capsys.readouterr().err
    assert run(["jobs", "list", "--context", "other"]) == 2
    assert "there is no context 'other': known in" in capsys.readouterr().err


def test_a_secret_on_the_command_line_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every user of a machine can list the arguments of every process."""
    rows = [
        (["jobs", "list", "--url", f"nats://app:{SECRET}@127.0.0.1:1"], "set JOBLEDGER_URL instead"),
        (["jobs", "list", "--url", f"nats://a:1,nats://{SECRET}@127.0.0.1:1"], "set JOBLEDGER_URL instead"),
        (["up", "--url", f"nats://app:{SECRET}@127.0.0.1:1"], "set JOBLEDGER_URL instead"),
        (
            ["jobs", "list", "--user", "a", "--password", SECRET],
            "set JOBLEDGER_PASSWORD, or name a file with --password-file",
        ),
        (
            ["worker", "--app", "x", "--token", SECRET],
            "set JOBLEDGER_TOKEN, or name a file with --token-file",
        ),
        (["jobs", "list", "--nkey", new_key().seed.decode()], "nkey is a seed itself"),
    ]
    for words, told in rows:
        assert run(words) == 2, words
        said = "".join(capsys.readouterr())
        assert told in said, said
        assert SECRET not in said


async def test_worker_processes_get_what_their_supervisor_was_given_and_ps_shows_no_secret(
    server: Secured, command: Callable[..., Process], tmp_path: Path
) -> None:
    words = ("--app", "apptasks", "--processes", "2", "--json", *TLS, "--user", "app")
    given = {"JOBLEDGER_URL": server.url("tls"), "JOBLEDGER_PASSWORD": SECRET}
    given["JOBLEDGER_LEDGER_BYTES_MAX"] = str(16 << 20)
    worker = command("worker", *words, variables=given)
    await anyio.to_thread.run_sync(worker.line)
    here = Access(
        user="app",
        password=SECRET,
        tls_ca=tmp_path / "ca.pem",
        tls_cert=tmp_path / "own.pem",
        tls_key=tmp_path / "own.key",
    )
    async with connect(server.url("tls"), **here.given()) as ledger:
        pids = await _pids(ledger)
        shown = await anyio.run_process(["ps", "-o", "args=", "-ww", "-p", ",".join(map(str, pids))])
        assert shown.stdout.count(b"worker") == 2
        assert SECRET.encode() not in shown.stdout
    assert await anyio.to_thread.run_sync(worker.end, signal.SIGTERM) == 0
    assert not {"WARNING", "ERROR"}.intersection(worker.errors.split()), worker.errors


async def _pids(ledger: Ledger) -> list[int]:
    with anyio.fail_after(30):
        while len(found := [info.pid for info in await ledger.leases.all()]) < 2:
            await anyio.sleep(0.05)
    return found


async def test_connect_without_an_address_takes_all_from_the_environment(
    server: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables("--url", server.url("tls"), *TLS, *LOGIN).items():
        monkeypatch.setenv(name, value)
    async with connect(ledger_bytes_max=16 << 20):
        pass
    async with connect(user="app", password=SECRET):
        pass
    rows: list[tuple[dict[str, Any], str]] = [
        ({"token": "other"}, "check the token"),
        ({"url": server.url("tls"), "tls_ca": "ca.pem"}, "only clients with a certificate"),
    ]
    for given, words in rows:
        with pytest.raises(ServerUnreachableError, match=words):
            async with connect(**given):
                pass


def test_words_are_the_same_everywhere_and_no_repr_shows_a_secret() -> None:
    given = {name: f"{SECRET}-{name}" for name in ("user", "password", "tls_ca", "tls_cert", "tls_key")}
    access = Access(**given)
    assert from_variables(access.variables()) == access.given() == given
    config = LedgerConfig(url=f"nats://a:{SECRET}@h:1", **access.given())
    assert f"{SECRET}" not in f"{access!r} {config!r}"
    assert "nats://***@h:1" in repr(config)
    assert json.dumps(sorted(NAMES)).count("_") == 5
