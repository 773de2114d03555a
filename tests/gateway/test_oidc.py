"""Logging in by a provider of OpenID Connect that runs on this machine: the code flow with PKCE, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from tests.support.keyholders import BASE, House, code_of, house

from jobledger.gateway.access.keys import AccessSettings
from jobledger.gateway.access.oidc import OidcSettings
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import ConfigurationError

with warnings.catch_warnings(record=True):  # it uses what its library will drop
    import oidc_provider_mock  # type: ignore[import-untyped]

#: The provider runs in this process, on a library that it uses as it soon may no more.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
BACK = "/login/oidc/callback"
PEOPLE = '[users."dana@shop.example"]\nrole = "operator"\n[groups.ops]\nrole = "viewer"\n'


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    claims: dict[str, dict[str, object]] = {
        "dana": {"email": "dana@shop.example", "email_verified": True},
        "eve": {"email": "eve@shop.example", "email_verified": True, "groups": ["staff", "ops"]},
        "mallory": {"email": "dana@shop.example", "email_verified": False},
        "trent": {"email": "dana@shop.example"},
        "oscar": {"email": "dana@shop.example", "email_verified": "true"},
        "nobody": {"email": "nobody@shop.example", "email_verified": True},
    }
    users = [oidc_provider_mock.User(sub=name, claims=said) for name, said in claims.items()]
    with oidc_provider_mock.run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
async def home(ledger: Ledger, tmp_path: Path, issuer: str) -> AsyncIterator[House]:
    people = tmp_path / "people.toml"
    people.write_text(PEOPLE)
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    oidc = OidcSettings(issuer=issuer, client_id="jobledger", client_secret=secret)
    async with house(ledger, tmp_path, people=people, oidc=oidc) as made:
        yield made


async def _sent_back(address: str, who: str) -> str:
    """Do what a browser does at the provider; return where it sends somebody."""
    async with httpx.AsyncClient() as browser:
        answer = await browser.post(address, data={"sub": who})
    assert answer.status_code == 302, answer.text
    return answer.headers["location"].removeprefix(BASE)


async def _begun(browser: httpx.AsyncClient, after: str = "/jobs") -> str:
    """Begin to log in; return the address at the provider."""
    answer = await browser.get("/login/oidc", params={"after": after})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def test_a_person_logs_in_and_may_do_what_the_file_says(home: House, tmp_path: Path) -> None:
    async with home.client() as browser:
        assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED", (
            "a provider is there, so nobody is local"
        )
        assert "Log in with localhost" in (await browser.get("/login")).text
        answer = await browser.get(await _sent_back(await _begun(browser), "dana"))
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
        me = (await browser.get("/v1/me")).json()
        assert (me["name"], me["key"], "review" in me["permissions"]) == ("user:dana@shop.example", "", True)
        (tmp_path / "people.toml").write_text("[everyone]\nrole = 'viewer'\n")
        assert home.access.people is not None
        home.access.people._looked_at = 0.0
        assert (await browser.get("/v1/me")).json()["permissions"] == ["view"]
    async with home.client() as browser:
        assert (await browser.get(await _sent_back(await _begun(browser), "eve"))).status_code == 303


async def test_groups_count_where_the_person_is_not_named(home: House) -> None:
    async with home.client() as browser:
        await browser.get(await _sent_back(await _begun(browser), "eve"))
        me = (await browser.get("/v1/me")).json()
        assert (me["name"], me["permissions"]) == ("user:eve@shop.example", ["view"])


async def test_the_code_is_bound_to_this_browser_by_pkce_and_state(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    provider = home.access.provider
    assert provider is not None
    ask = provider._ask

    async def noting(method: str, address: str, **given: Any) -> dict[str, Any]:
        asked.append(given.get("data", {}))
        return await ask(method, address, **given)

    monkeypatch.setattr(provider, "_ask", noting)
    async with home.client() as browser, home.client() as thief:
        address = await _begun(browser)
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        back = await _sent_back(address, "dana")
        assert (await thief.get(back)).status_code == 401, "another browser"
        assert (await browser.get(back.replace("state=", "state=x"))).status_code == 401
        assert (await browser.get(back)).status_code == 303
        challenge = base64.urlsafe_b64encode(hashlib.sha256(asked[-2]["code_verifier"].encode()).digest())
        assert (query["code_challenge"], query["code_challenge_method"]) == (
            challenge.rstrip(b"=").decode(),
            "S256",
        )
        assert query["redirect_uri"] == asked[-2]["redirect_uri"] == f"{BASE}{BACK}"
        assert (await browser.get(back)).status_code == 401, "used before"


async def test_who_is_not_verified_not_named_or_said_no_is_refused(home: House) -> None:
    for who, sentence in (
        ("mallory", "does not say that it verified"),
        ("trent", "does not say that it verified"),
        ("oscar", "does not say that it verified"),
        ("nobody", "may do nothing here"),
    ):
        async with home.client() as browser:
            answer = await browser.get(await _sent_back(await _begun(browser), who))
            assert answer.status_code == 401
            assert sentence in answer.text
            assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED"
    async with home.client() as browser:
        state = parse_qs(urlsplit(await _begun(browser)).query)["state"][0]
        answer = await browser.get(BACK, params={"state": state, "error": "access_denied"})
        assert (answer.status_code, "access_denied" in answer.text) == (401, True)


async def test_a_token_for_another_log_in_or_program_or_by_another_signer_is_refused(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = home.access.provider
    assert provider is not None
    begin = provider.begin

    async def other_nonce(back: str, *, silently: bool = False) -> tuple[str, dict[str, str]]:
        assert not silently
        address, passing = await begin(back)
        return address, passing | {"nonce": "another"}

    async with home.client() as browser:
        monkeypatch.setattr(provider, "begin", other_nonce)
        answer = await browser.get(await _sent_back(await _begun(browser), "dana"))
        assert (answer.status_code, "not good for this log-in" in answer.text) == (401, True)
        monkeypatch.setattr(provider, "begin", begin)
        back = await _sent_back(await _begun(browser), "dana")
        settings = provider._settings
        monkeypatch.setattr(provider, "_settings", msgspec.structs.replace(settings, client_id="other"))
        assert (await browser.get(back)).status_code == 401
        monkeypatch.setattr(provider, "_settings", settings)
        back = await _sent_back(await _begun(browser), "dana")
        ask = provider._ask

        async def forged(method: str, address: str, **given: Any) -> dict[str, Any]:
            said = await ask(method, address, **given)
            if "id_token" in said:
                head, body, _ = said["id_token"].split(".")
                none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
                said["id_token"] = f"{none}.{body}." if method == "POST" else head
            return said

        monkeypatch.setattr(provider, "_ask", forged)
        assert (await browser.get(back)).status_code == 401


async def test_a_provider_that_is_away_or_is_another_is_said(
    ledger: Ledger, tmp_path: Path, issuer: str
) -> None:
    people = tmp_path / "people.toml"
    people.write_text(PEOPLE)
    away = OidcSettings(issuer="http://127.0.0.1:9", client_id="x")
    async with house(ledger, tmp_path, people=people, oidc=away) as home, home.client() as browser:
        answer = await browser.get("/login/oidc")
        assert (answer.status_code, "gives no answer that can be used" in answer.text) == (503, True)
    another = OidcSettings(issuer=issuer.replace("localhost", "127.0.0.1"), client_id="x")
    async with house(ledger, tmp_path, people=people, oidc=another) as home, home.client() as browser:
        home.access.provider._settings = OidcSettings(issuer=issuer + "/", client_id="x")  # type: ignore[union-attr]
        assert (await browser.get("/login/oidc")).status_code == 303
        answer = await browser.get(BACK, params={"state": "x", "code": "y"})
        assert answer.status_code == 401


def test_a_provider_needs_https_an_id_and_a_file_of_people(tmp_path: Path) -> None:
    for given, sentence in (
        ({"issuer": "http://login.example", "client_id": "x"}, "no address with https"),
        ({"issuer": "login.example", "client_id": "x"}, "no address with https"),
        ({"issuer": "https://login.example", "client_id": ""}, "--oidc-client-id"),
        (
            {"issuer": "https://login.example", "client_id": "x", "client_secret": tmp_path / "none"},
            "--oidc-client-secret-file",
        ),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            OidcSettings(**dict[str, Any](given))
    with pytest.raises(ConfigurationError, match="--oidc-issuer tells who people are"):
        AccessSettings(
            session_key=tmp_path / "k", oidc=OidcSettings(issuer="https://login.example", client_id="x")
        )
