"""While a ledger has no keys, the account that runs its gateway gets in by a key of its own, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest
from tests.support.gateway import send
from tests.support.gateways import events_of, listening
from tests.support.keyholders import BASE, House, altered, code_of, house
from tests.support.limits import LIMIT_S

from jobledger.cli.output import Output
from jobledger.cli.processes.entrance import Entrance
from jobledger.gateway.access.keys import AccessSettings
from jobledger.gateway.client import connect
from jobledger.ledger import Ledger
from jobledger.ledger.access.account import ACCOUNT_FILE, make_account_key, read_account_key
from jobledger.ledger.model.errors import ConfigurationError, PermissionRefusedError

pytestmark = pytest.mark.anyio
_READS = ("/v1/me", "/v1/jobs", "/v1/jobs/mail/a", "/v1/events?wait=0", "/v1/ledger", "/v1/keys")


@pytest.fixture
async def home(ledger: Ledger, tmp_path: Path) -> AsyncIterator[House]:
    async with house(ledger, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def plain_proxy(port: int, **headers: str) -> AsyncGenerator[str, None]:
    """Pass bytes on to a port of this machine, as a tunnel does; a request goes on with these headers in their place."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", port)
        head = await reader.readuntil(b"\r\n\r\n")
        for name, value in headers.items():
            head = re.sub(rb"(?im)^%s: .*$" % name.encode(), f"{name}: {value}\r".encode(), head)
        to_there.write(head)
        async with anyio.create_task_group() as group:
            group.start_soon(_pass, reader, to_there)
            await _pass(there, writer)
            group.cancel_scope.cancel()
        writer.close()
        to_there.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


async def test_whoever_comes_through_a_tunnel_is_not_the_account(home: House) -> None:
    """A proxy that tells nothing of itself and rewrites `Host` looks like somebody on this machine."""
    async with (
        listening(home.gateway) as url,
        plain_proxy(int(url.rpartition(":")[2]), Host="127.0.0.1") as tunnel,
        httpx.AsyncClient(base_url=tunnel, timeout=LIMIT_S, headers={"connection": "close"}) as eve,
    ):
        own = {"origin": "http://127.0.0.1"}
        for path in _READS:
            assert code_of(await eve.get(path, headers=own)) == "UNAUTHENTICATED", path
        body = {"task": "send", "input": {"to": "eve"}}
        assert code_of(await eve.post("/v1/jobs", json=body, headers=own)) == "UNAUTHENTICATED"
        assert code_of(await eve.post("/v1/keys", json={"name": "e", "role": "admin"})) == "UNAUTHENTICATED"
        page = await eve.get("/jobs")
        assert (page.status_code, page.headers["location"]) == (303, "/login?after=/jobs")
        with_key = {"authorization": f"Bearer {home.account_key}"}
        assert (await eve.get("/v1/me", headers=with_key)).json()["name"].startswith("local:")
    assert (await home.ledger.log.head()).last_sequence == 0, "nothing was done"


async def test_what_is_no_request_of_the_ledger_stays_open(home: House) -> None:
    async with home.client() as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert code_of(await client.get("/metrics")) == "UNAUTHENTICATED", "they name queues and tasks"
        refused = await client.get("/v1/me")
        assert refused.headers["www-authenticate"] == 'Bearer realm="jobledger"'
        assert "open the address that it printed" in refused.json()["detail"]
        assert str(home.account_file) not in refused.text, "strangers need no names of folders"
        assert "the address that this gateway printed" in (await client.get("/login")).text


async def test_the_address_opens_a_session_and_is_left_at_once(home: House) -> None:
    async with home.client() as client:
        answer = await client.get("/login", params={"token": home.account_key})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        said = answer.headers["set-cookie"]
        assert "HttpOnly; SameSite=Lax" in said
        assert home.account_key not in str(answer.headers) + answer.text
        assert (await client.get("/v1/me")).json()["permissions"][-1] == "admin"
        for wrong in (altered(home.account_key), "x", "jl_localaccount_", home.account_key + "A"):
            refused = await client.get("/login", params={"token": wrong})
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False), wrong
            assert 'role="alert"' in refused.text
    async with home.client(headers={"cookie": altered(said.partition(";")[0])}) as forger:
        assert code_of(await forger.get("/v1/me")) == "UNAUTHENTICATED"


async def test_a_key_of_the_ledger_in_an_address_opens_nothing(home: House) -> None:
    made = await home.key(role="admin")
    async with home.client() as client:
        refused = await client.get("/login", params={"token": made.secret})
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)


async def test_what_is_in_the_file_logs_in_at_the_form_too(home: House) -> None:
    for text in (home.account_key, home.account_file.read_text(encoding="utf-8")):
        async with home.client() as client:
            answer = await client.post("/login", data={"key": text}, headers={"origin": BASE})
            assert answer.status_code == 303, answer.text
            assert (await client.get("/v1/me")).json()["name"].startswith("local:")


async def test_the_first_key_ends_sessions_and_streams_of_the_account(home: House) -> None:
    async with listening(home.gateway) as url, httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        assert (await client.get("/login", params={"token": home.account_key})).status_code == 303
        await home.ledger.enqueue(send, to="ann")
        async with client.stream(
            "GET", "/v1/events?from=1", headers={"accept": "text/event-stream"}
        ) as stream:
            seen = events_of(stream)
            assert (await anext(seen)).kind == "queued"
            made = await home.key(role="viewer")
            async with asyncio.timeout(LIMIT_S):
                async for _ in seen:
                    pass
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"
        own = {"authorization": f"Bearer {home.account_key}"}
        refused = await client.get("/v1/me", headers=own)
        assert "since the ledger has keys" in refused.json()["detail"]
        assert (await client.get("/login", params={"token": home.account_key})).status_code == 401
    async with home.holder(made) as holder:
        assert (await holder.get("/v1/me")).status_code == 200


async def test_forms_and_logging_out_are_of_this_session(home: House) -> None:
    async with home.browser() as one, home.browser() as two:
        tokens = [_form_token((await each.get("/keys")).text) for each in (one, two)]
        assert tokens[0] != tokens[1]
        assert (await one.post("/logout", data={"token": tokens[1]})).status_code == 403
        copied = {"cookie": "; ".join(f"{name}={value}" for name, value in one.cookies.items())}
        left = await one.post("/logout", data={"token": tokens[0]})
        assert (left.status_code, left.headers["location"]) == (303, "/login")
        async with home.client(headers=copied) as thief:
            assert code_of(await thief.get("/v1/me")) == "UNAUTHENTICATED"
        assert (await two.get("/v1/me")).status_code == 200


def _form_token(page: str) -> str:
    found = re.search(r'action="/logout"><input type="hidden" name="token" value="(\w+)"', page)
    assert found is not None
    return found[1]


async def test_the_key_stays_across_restarts_and_is_one_for_all_processes(
    ledger: Ledger, tmp_path: Path
) -> None:
    async with (
        house(ledger, tmp_path) as one,
        house(ledger, tmp_path) as two,
        one.browser() as browser,
        two.account() as program,
    ):
        before = one.account_key
        assert (await program.get("/v1/me")).status_code == 200
        cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
    async with house(ledger, tmp_path) as again, again.client(headers=cookie) as browser:
        assert again.account_key == before
        assert (await browser.get("/v1/me")).status_code == 200
    (tmp_path / ACCOUNT_FILE).unlink()
    async with house(ledger, tmp_path) as other, other.client(headers=cookie) as browser:
        assert other.account_key != before
        assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED", "it ends with the key"


async def test_where_others_come_by_a_proxy_the_account_has_no_key(ledger: Ledger, tmp_path: Path) -> None:
    async with house(ledger, tmp_path, behind_proxy=("10.0.0.1",)) as behind, behind.client() as client:
        assert not behind.account_file.exists()
        key = make_account_key(behind.account_file)
        refused = await client.get("/v1/me", headers={"authorization": f"Bearer {key}"})
        assert "not for this machine alone" in refused.json()["detail"]
    async with house(ledger, tmp_path, is_loopback=False) as far, far.account() as client:
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


def test_many_who_make_the_key_at_once_get_the_same_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / ACCOUNT_FILE
    children: list[tuple[int, int]] = []
    for _ in range(8):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, make_account_key(path).encode())
            os._exit(0)
        os.close(writing)
        children.append((pid, reading))
    found: set[bytes] = set()
    for pid, reading in children:
        found.add(os.read(reading, 200))
        os.close(reading)
        assert os.waitpid(pid, 0)[1] == 0
    assert found == {read_account_key(path).encode()}
    assert [each.name for each in path.parent.iterdir()] == [ACCOUNT_FILE]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="is not this account's alone"):
        AccessSettings(session_key=tmp_path / "k", account_key=path).account(is_loopback=True)
    path.chmod(0o600)
    path.write_text("Authorization: Bearer jl_none", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="holds no key of an account: delete it"):
        make_account_key(path)


async def test_the_client_on_this_machine_sends_the_key_by_itself(
    home: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "jobledger"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder.parent))
    async with listening(home.gateway) as url:
        async with connect(url) as remote:
            with pytest.raises(PermissionRefusedError, match="the account that runs it"):
                await remote.job("a")
        folder.mkdir(parents=True)
        home.account_file.rename(folder / ACCOUNT_FILE)
        job = await home.ledger.enqueue(send.options(id="a"), to="ann")
        for each in (url, url.replace("127.0.0.1", "localhost")):
            async with connect(each) as remote:
                assert (await remote.job("a")).id == job.id


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_shows_the_key_and_a_browser_gets_it_in_a_file(
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    opener, opened = tmp_path / "xdg-open", tmp_path / "opened"
    opener.write_text(
        f'#!/bin/sh\necho "$@" > {opened}.part && mv {opened}.part {opened}\n', encoding="utf-8"
    )
    opener.chmod(0o700)
    file = tmp_path / "jobledger" / ACCOUNT_FILE
    key = make_account_key(file)
    made = Entrance(gateway="http://127.0.0.1:8080", key_file=str(file))
    made.say(Output())
    said = capsys.readouterr().out
    assert (key in said, f"curl -H @{file}" in said) == (is_terminal, True)
    with made.shown(browser=True):
        pages = list(file.parent.glob("*.html"))
        assert len(pages) == is_terminal
        for page in pages:
            assert f"url=http://127.0.0.1:8080/login?token={key}" in page.read_text(encoding="utf-8")
            assert page.stat().st_mode & 0o777 == 0o600
            deadline = time.monotonic() + LIMIT_S
            while not opened.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert opened.read_text(encoding="utf-8").strip() == str(page), (
                "no list of processes shows the key"
            )
    assert list(file.parent.glob("*.html")) == []
    with made.shown(browser=False):
        assert list(file.parent.glob("*.html")) == []


@pytest.mark.parametrize(
    "url", ["https://jobs.example", "http://10.0.0.7:8080", "http://127.0.0.1.evil.example"]
)
async def test_the_client_sends_it_nowhere_else(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    make_account_key(tmp_path / "jobledger" / ACCOUNT_FILE)
    sent: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers)
        return httpx.Response(404, json={})

    async with connect(url, transport=httpx.MockTransport(answer)) as remote:
        with pytest.raises(Exception):  # noqa: B017 - whatever a 404 without a problem is
            await remote.job("a")
    assert sent
    assert not any("authorization" in each for each in sent)
