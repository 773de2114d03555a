"""Who may connect, and how a client says who it is: certificates, nkeys, credentials files, passwords, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.secured import Authority, Operator, Pair, Secured, new_key, secured, tls
from tests.support.working import until

from jobledger.ledger import connect, sync, task
from jobledger.ledger.model.errors import ConfigurationError, ServerUnreachableError
from jobledger.ledger.nats.connection import _PINGS

pytestmark = pytest.mark.anyio
LIMIT_S = 3.0


@task(queue="work")
async def add(a: int, b: int) -> int:
    return a + b


@task(queue="work")
async def note(a: int, b: str) -> None: ...


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def serve(nats_server_binary: str, tmp_path: Path) -> Iterator[Any]:
    """Start servers with a configuration each."""
    with contextlib.ExitStack() as stack:

        def begin(configuration: str) -> Secured:
            number = len(list(tmp_path.glob("server-*")))
            return stack.enter_context(
                secured(nats_server_binary, tmp_path / f"server-{number}", configuration)
            )

        yield begin


async def works(url: str, **given: Any) -> None:
    """Enqueue, through both clients."""
    async with connect(url, ledger_bytes_max=16 << 20, **given) as ledger:
        await ledger.enqueue(add, 1, 2)

    def block() -> None:
        with sync.connect(url, ledger_bytes_max=16 << 20, **given) as ledger:
            ledger.enqueue(add, 1, 2)

    await anyio.to_thread.run_sync(block)


async def refused(url: str, **given: Any) -> str:
    """Return the sentence; it comes within the limit and a second."""
    begun = time.monotonic()
    with pytest.raises((ServerUnreachableError, ConfigurationError)) as caught:
        async with connect(url, connect_timeout_s=LIMIT_S, **given):
            pass
    assert time.monotonic() - begun < LIMIT_S + 1
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_server_is_known_by_its_authority(serve: Any, authority: Authority) -> None:
    server = serve(tls(authority.issue("localhost", "127.0.0.1")))
    await works(server.url("tls"), tls_ca=authority.ca)
    await works(server.url("nats", "localhost"), tls_ca=str(authority.ca))


async def test_a_certificate_that_is_not_good_is_told_as_what_it_is(serve: Any, authority: Authority) -> None:
    good, other = authority.issue("127.0.0.1"), authority.issue("ledger.example")
    late = authority.issue("127.0.0.1", days=-1)
    rows: list[tuple[Pair, dict[str, Any], str]] = [
        (
            good,
            {},
            "that nobody we trust has signed (unable to get local issuer certificate): name its CA with tls_ca ",
        ),
        (other, {"tls_ca": authority.ca}, "for other names than 127.0.0.1"),
        (late, {"tls_ca": authority.ca}, "that has expired: renew it on the server"),
    ]
    for pair, given, words in rows:
        server = serve(tls(pair))
        assert words in await refused(server.url(), **given)
        assert words in await refused(server.url("tls"), **given)


async def test_a_client_certificate_is_shown_and_asked_for(
    serve: Any, authority: Authority, tmp_path: Path
) -> None:
    server = serve(tls(authority.issue("127.0.0.1"), authority.ca))
    own = authority.issue()
    given = {"tls_ca": authority.ca, "tls_cert": own.cert, "tls_key": own.key}
    await works(server.url(), **given)
    words = (
        "lets in only clients with a certificate: name yours with tls_cert (--tls-cert, JOBLEDGER_TLS_CERT)"
    )
    assert words in await refused(server.url(), tls_ca=authority.ca)
    (tmp_path / "foreign").mkdir()
    for strange in (Authority(tmp_path / "foreign", "foreign").issue(), authority.issue(days=-1)):
        said = await refused(server.url(), tls_ca=authority.ca, tls_cert=strange.cert, tls_key=strange.key)
        assert f"refused the client certificate {strange.cert}" in said


async def test_nothing_is_sent_without_tls_to_who_asked_for_it(serve: Any, authority: Authority) -> None:
    server = serve("authorization { user: a, password: secret }")
    for url, given in ((server.url("tls"), {}), (server.url(), {"tls_ca": authority.ca})):
        said = await refused(url, user="a", password="secret", **given)
        assert "does not offer TLS, and nothing is sent to it without" in said
    optional = serve(tls(authority.issue("127.0.0.1")) + "allow_non_tls: true\n")
    await works(optional.url())
    await works(optional.url("tls"), tls_ca=authority.ca)
    assert "nobody we trust" in await refused(optional.url("tls"))


async def test_passwords_and_tokens_come_by_word_or_file(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret word\n")
    server = serve('authorization { user: app, password: "s3cret word" }')
    await works(server.url(), user="app", password="s3cret word")
    await works(server.url(), user="app", password_file=file)
    server = serve('authorization { token: "s3cret word" }')
    await works(server.url(), token="s3cret word")
    await works(server.url(), token_file=file)
    for given in ({}, {"token": "other"}, {"user": "app", "password": "other-w0rd"}):
        said = await refused(server.url(), **given)
        assert "refused the credentials: check " in said
        assert "other" not in said


async def test_an_nkey_lets_in_by_its_seed(serve: Any, tmp_path: Path) -> None:
    known, stranger = new_key(), new_key()
    for name, key in (("known", known), ("stranger", stranger)):
        (tmp_path / name).write_bytes(key.seed + b"\n")
    server = serve(f"authorization {{ users: [{{ nkey: {known.public} }}] }}")
    await works(server.url(), nkey=tmp_path / "known")
    said = await refused(server.url(), nkey=tmp_path / "stranger")
    assert f"refused the credentials: check nkey {tmp_path / 'stranger'}" in said


async def test_a_credentials_file_lets_in_until_it_expires_or_is_revoked(serve: Any, tmp_path: Path) -> None:
    operator, user, other = Operator(tmp_path), new_key(), new_key()
    server = serve(operator.configuration())
    await works(server.url(), creds=operator.user(user))
    said = await refused(server.url(), creds=operator.user(other, expires_s=-60))
    assert f"those in creds {tmp_path / other.public[:8]}.creds expired at " in said
    creds = operator.user(user)
    async with connect(server.url(), creds=creds) as ledger:
        server.reload(operator.configuration(revoked=user))
        await until(lambda: bool(ledger.connection.failures))
        assert f"refused the credentials: check creds {creds}" in str(ledger.connection.failures[0])
        server.reload(operator.configuration())
        await ledger.enqueue(add, 1, 2)
    server.reload(operator.configuration(revoked=user))
    with anyio.fail_after(10):
        while True:
            with contextlib.suppress(AssertionError, pytest.fail.Exception):
                assert "refused the credentials" in await refused(server.url(), creds=creds)
                break


async def test_another_of_the_addresses_is_tried(serve: Any, authority: Authority) -> None:
    """Whatever is wrong with the first: nobody there, frozen, an untrusted certificate, a refused password."""
    good = serve("authorization { user: a, password: b }")
    frozen, foreign, strict = (
        serve(""),
        serve(tls(authority.issue("127.0.0.1"))),
        serve("authorization { token: x }"),
    )
    frozen.freeze()
    urls = [each.url() for each in (frozen, foreign, strict)]
    for url in ("nats://127.0.0.1:1", *urls):
        for _ in range(2):  # in any order
            await works(f"{url},{good.url()}", user="a", password="b", connect_timeout_s=LIMIT_S)
    said = await refused(f"nats://127.0.0.1:1,{urls[2]}", user="a", password="b")
    assert said.startswith(f"{urls[2]} refused the credentials")


async def test_files_that_are_no_good_are_told_before_anything_is_sent(
    authority: Authority, tmp_path: Path
) -> None:
    empty, folder, pair = tmp_path / "empty", tmp_path / "folder", authority.issue()
    empty.write_text("\n")
    folder.mkdir()
    rows: list[tuple[dict[str, Any], str]] = [
        (
            {"creds": tmp_path / "none"},
            f"creds {tmp_path / 'none'} cannot be read: No such file or directory",
        ),
        ({"creds": folder}, f"creds {folder} cannot be read: it is a folder: name a regular file"),
        ({"creds": empty}, f"creds {empty} holds no JWT and seed of a user"),
        ({"nkey": empty}, f"nkey {empty} holds no seed of a user's nkey (SU...)"),
        ({"token_file": empty}, f"token_file {empty} is empty: its first line is to be the secret"),
        ({"tls_ca": empty}, f"tls_ca {empty} holds no certificate in PEM"),
        (
            {"tls_cert": pair.cert, "tls_key": authority.issue().key},
            "are no pair of a certificate and its key",
        ),
        ({"tls_key": pair.key}, "tls_key is given without its certificate: set tls_cert "),
        ({"creds": "a", "token": "b"}, "creds and token are given: one of them is enough"),
        ({"user": "a"}, "user needs a password: set password (JOBLEDGER_PASSWORD) or password_file "),
        ({"nkey": new_key().seed.decode()}, "nkey is a seed itself"),
    ]
    for given, words in rows:
        assert words in await refused("nats://127.0.0.1:1", **given)


async def test_a_frozen_server_is_left_for_another_though_much_waits_to_be_sent(serve: Any) -> None:
    """Its kernel still takes connections and, for a while, bytes; only its silence tells."""
    one, other = serve(""), serve("")
    url = f"{one.url()},{other.url()}"
    async with connect(url, ledger_bytes_max=64 << 20, nats_options={"ping_interval": 0.2}) as ledger:
        place = ledger.connection.connected_url
        assert place is not None
        first, second = (one, other) if place.port == one.port else (other, one)
        async with connect(second.url(), ledger_bytes_max=64 << 20):
            pass  # makes the streams there, too
        first.freeze()
        inputs = ({"a": number, "b": "x" * 40_000} for number in range(1_000))
        adding = asyncio.create_task(ledger.enqueue_many(note, inputs))
        begun = time.monotonic()
        await until(lambda: (at := ledger.connection.connected_url) is not None and at.port == second.port)
        # Three pings, half a second for the bytes that nobody takes, and what a busy machine adds; the kernel alone
        # would wait for many minutes.
        assert time.monotonic() - begun < 15
        await ledger.enqueue(add, 1, 2)
        assert (await adding).created == 1_000


def test_silence_is_noticed_within_eight_seconds_unless_told_otherwise() -> None:
    assert _PINGS["ping_interval"] * (_PINGS["max_outstanding_pings"] + 2) <= 8


async def test_a_command_that_meets_a_frozen_server_ends_in_time(serve: Any) -> None:
    server = serve("")
    async with connect(server.url(), ledger_bytes_max=16 << 20):
        begun = time.monotonic()
        server.freeze()
        assert "did not answer in time" in await refused(server.url())
    assert time.monotonic() - begun < LIMIT_S + 4, "closing waits for nobody"
