"""`jobledger gateway` beyond this machine: with a key it starts, and it refuses what is revoked."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S


@pytest.mark.fault  # three processes for what other tests try in one
def test_beyond_this_machine_a_key_lets_in_until_it_is_revoked(
    cli: CommandLine, command: Callable[..., Any], tmp_path: Path
) -> None:
    secret = cli.run("keys", "create", "ci", "--role", "viewer", *cli.where).out.strip()
    (row,) = cli.run("keys", "list", "--json", *cli.where).lines
    process = command(
        *("gateway", "--host", "0.0.0.0", "--port", "0", "--json", *cli.where),
        *("--projection", str(tmp_path / "p.db"), "--session-key", str(tmp_path / "session.key")),
        *("--behind-proxy", "127.0.0.1", "--allow-host", "jobs.example", "--quota", "read=1000/1s"),
    )
    port = httpx.URL(process.line()["gateway"]).port
    own = {"authorization": f"Bearer {secret}", "host": "jobs.example"}

    def ask(**headers: str) -> int:
        return httpx.get(f"http://127.0.0.1:{port}/v1/me", headers=headers, timeout=LIMIT_S).status_code

    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            assert ask(**own) == 200
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert ask(host="jobs.example") == 401
    assert ask(**own | {"host": "evil.example"}) == 421
    assert cli.run("keys", "revoke", row["key"], *cli.where).code == 0
    revoked = time.monotonic()
    while ask(**own) == 200:
        assert time.monotonic() < revoked + LIMIT_S


def test_settings_that_cannot_be_are_told_in_a_sentence(cli: CommandLine, tmp_path: Path) -> None:
    for words, sentence in (
        (("--quota", "write=many"), "--quota 'write=many' is none of read, write, bulk, login"),
        (("--trust-user-header", "X-User"), "--trust-user-header and --trust-from belong together"),
        (("--oidc-client-id", "x"), "belong to --oidc-issuer"),
        (("--oidc-issuer", "http://login.example", "--oidc-client-id", "x"), "is no address with https://"),
        (("--people", str(tmp_path / "none")), "does not say what people may do"),
        (("--allow-origin", "app.example"), "is no origin"),
    ):
        found = cli.run("gateway", "--port", "0", *words, *cli.where)
        assert (found.code, sentence in found.err) == (2, True), found
