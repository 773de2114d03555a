"""Who is let in: by which key, with which rights, for how long; on every gateway of a ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from tests.support.gateway import send
from tests.support.gateways import events_of, listening
from tests.support.keyholders import BASE, House, altered, code_of, house
from tests.support.limits import LIMIT_S
from tests.support.working import until

from jobledger.admin.keys import Grant, MadeKey, create_link, list_keys, revoke_key, rotate_key
from jobledger.gateway.access import ring
from jobledger.gateway.access.rates import Quota
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http import guard
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.ledger import Ledger
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.rights.grants import ROLES, Role
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio
#: Addresses that say who asks, or what anybody may know.
WITHOUT_PERMISSION = {("GET", "/v1/me")}
PUBLIC = {"/healthz", "/readyz", "/metrics"}


@pytest.fixture
async def home(ledger: Ledger, tmp_path: Path) -> AsyncIterator[House]:
    async with house(ledger, tmp_path) as made:
        yield made


async def test_the_account_is_let_in_until_there_is_a_key(home: House) -> None:
    async with home.account() as client:
        me = (await client.get("/v1/me")).json()
        assert (me["name"].partition(":")[0], me["permissions"][-1]) == ("local", "admin")
        made = await home.key(role="viewer")
        answer = await client.get("/v1/me")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="jobledger"')
        async with home.holder(made) as holder:
            assert (await holder.get("/v1/me")).json() == {
                "name": f"key:ci/{made.info.key}",
                "key": made.info.key,
                "permissions": ["view"],
                "queues": [],
                "tasks": [],
            }
        await revoke_key(home.ledger, made.info.key, by="ann")
        await home.heard_of(made.info.key, "revoked")
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


async def test_beyond_loopback_nobody_is_let_in_without_a_key(ledger: Ledger, tmp_path: Path) -> None:
    async with house(ledger, tmp_path, is_loopback=False) as far, far.client() as client:
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


async def test_what_is_revoked_or_rotated_on_one_gateway_is_refused_on_all(
    ledger: Ledger, tmp_path: Path
) -> None:
    async with house(ledger, tmp_path) as one, house(ledger, tmp_path) as other:
        made = await one.key(role="admin")
        key = made.info.key
        await other.heard_of(key, "live")
        async with other.holder(made) as holder, one.holder(made) as boss:
            cookie = await _log_in(other, made.secret)
            assert (await holder.get("/v1/me")).status_code == 200
            rotated = (await boss.post(f"/v1/keys/{key}/rotate", json={"grace_s": 60})).json()["secret"]
            await until(lambda: _digest(other, key) != made.secret, limit_s=LIMIT_S)
            assert (await holder.get("/v1/me")).status_code == 200, "the grace lasts"
            assert (await boss.post(f"/v1/keys/{key}/rotate", json={})).status_code == 200
            await until(lambda: _previous(other, key) == "", limit_s=LIMIT_S)
            assert code_of(await holder.get("/v1/me")) == "UNAUTHENTICATED"
            async with other.client(headers={"cookie": cookie}) as browser:
                assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED"
            for text in (rotated, "jl_x", made.secret[:-1], "", "Basic xyz"):
                async with other.client(headers={"authorization": f"Bearer {text}"}) as wrong:
                    assert code_of(await wrong.get("/v1/me")) == "UNAUTHENTICATED", text


def _digest(place: House, key: str) -> str:
    found = place.access.ring.find(key)
    return "" if found is None else found.sha256


def _previous(place: House, key: str) -> str:
    found = place.access.ring.find(key)
    return "?" if found is None else found.previous


def _address(endpoint: Endpoint) -> str:
    """Return an address of an endpoint that asks for what there is not: whoever may ask at all is told so."""
    return (
        "/".join("x1" if word.startswith("{") else word for word in endpoint.path.split("/")) + "?colour=red"
    )


def test_every_endpoint_has_a_permission() -> None:
    without = {(each.method, each.path) for each in ENDPOINTS if each.permission is None and not each.public}
    assert without == WITHOUT_PERMISSION
    public = {each.path for each in ENDPOINTS if each.public}
    assert {path for path in public if path not in PUBLIC and not path.startswith("/in/")} == set()


async def test_each_role_may_do_what_it_says_at_each_endpoint_and_nothing_else(home: House) -> None:
    for role in get_args(Role):
        made = await home.key(role, role=role)
        async with home.holder(made) as holder:
            for endpoint in ENDPOINTS:
                if endpoint.permission is None or endpoint.public:
                    continue
                answer = await holder.request(endpoint.method, _address(endpoint))
                expected = "BAD_REQUEST" if endpoint.permission in ROLES[role] else "JOB_ACCESS_DENIED"
                assert code_of(answer) == expected, f"{role} {endpoint.method} {endpoint.path}"


async def test_nobody_without_a_key_gets_to_any_endpoint(home: House) -> None:
    await home.key()
    async with home.client() as client:
        for endpoint in ENDPOINTS:
            if not endpoint.public:
                answer = await client.request(endpoint.method, _address(endpoint))
                assert code_of(answer) == "UNAUTHENTICATED", endpoint.path


async def _log_in(place: House, secret: str, *, link: bool = False, base: str = BASE) -> str:
    """Log in as a browser does; return the header `Cookie` from then on."""
    async with place.client(base) as client:
        fields = {"link" if link else "key": secret, "after": "/jobs?queue=mail"}
        answer = await client.post(
            "/login", data=fields, headers={"origin": base, "sec-fetch-site": "same-origin"}
        )
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?queue=mail"), answer.text
    return answer.headers["set-cookie"].partition(";")[0]


async def test_a_session_lasts_as_long_as_its_key(home: House) -> None:
    made = await home.key("dana", role="operator")
    cookie = await _log_in(home, made.secret)
    async with home.client(headers={"cookie": cookie}) as browser:
        assert (await browser.get("/v1/me")).json()["name"] == f"key:dana/{made.info.key}"
        await revoke_key(home.ledger, made.info.key, by="ann")
        await home.heard_of(made.info.key, "revoked")
        assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED"
    async with home.client(headers={"cookie": altered(cookie)}) as forger:
        assert code_of(await forger.get("/v1/me")) == "UNAUTHENTICATED"


async def test_cookies_are_bound_to_the_host_on_https(home: House) -> None:
    made = await home.key()
    async with home.client("https://localhost") as client:
        answer = await client.post("/login", data={"key": made.secret})
    said = answer.headers["set-cookie"]
    assert said.startswith("__Host-jobledger=")
    assert {each.strip() for each in said.split(";")[1:]} == {
        "Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Lax", "Secure",
    }  # fmt: skip
    plain = said.partition(";")[0].removeprefix("__Host-")
    async with home.client("https://localhost", headers={"cookie": plain}) as client:
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


async def test_logging_in_refuses_what_opens_nothing_and_leads_nowhere_else(home: House) -> None:
    made = await home.key()
    async with home.client() as client:
        answer = await client.post("/login", data={"key": altered(made.secret)})
        assert answer.status_code == 401
        assert 'role="alert"' in answer.text
        assert "set-cookie" not in answer.headers
        assert "www-authenticate" not in answer.headers
        for after in (
            "https://evil.example/",
            "//evil.example",
            "/\\evil.example",
            "javascript:alert(1)",
            "/a\nb",
        ):
            answer = await client.post("/login", data={"key": made.secret, "after": after})
            assert answer.headers["location"] == "/", after
        shown = await client.get('/login?after=/"><script>alert(1)</script>')
        assert "<script>" not in shown.text
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        assert shown.headers["referrer-policy"] == "same-origin", "else browsers send Origin: null"
        assert (await client.post("/login", data={"key": "x" * 20_000})).status_code == 413
    async with home.client() as client:
        came = {"referer": f"{client.base_url}/jobs/mail/a?sequence=3"}
        late = await client.post("/jobs/mail/a/cancel", data={"reason": "x"}, headers=came)
        assert late.headers["location"] == "/login?after=/jobs/mail/a%3Fsequence%3D3", "a form is no page"


async def test_a_link_is_used_once_and_not_by_looking_at_it(ledger: Ledger, tmp_path: Path) -> None:
    async with house(ledger, tmp_path) as one, house(ledger, tmp_path) as other:
        await one.key(role="admin")
        link = await _link(one)
        async with one.client() as client:
            for _ in range(2):
                page = await client.get("/login", params={"link": link.secret})
                assert link.secret in page.text
            bearer = {"authorization": f"Bearer {link.secret}"}
            assert code_of(await client.get("/v1/me", headers=bearer)) == "UNAUTHENTICATED"
        places = [one, other] * 4
        found = await asyncio.gather(
            *(_log_in(each, link.secret, link=True) for each in places), return_exceptions=True
        )
        cookies = [each for each in found if isinstance(each, str)]
        assert len(cookies) == 1
        for place in (one, other):
            await place.heard_of(link.info.key, "used")
            async with place.client(headers={"cookie": cookies[0]}) as browser:
                me = (await browser.get("/v1/me")).json()
                assert (me["name"], me["permissions"]) == (f"key:dana/{link.info.key}", ["view"])
        await revoke_key(ledger, link.info.key, by="ann")
        await other.heard_of(link.info.key, "revoked")
        async with other.client(headers={"cookie": cookies[0]}) as browser:
            assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED"


async def _link(place: House) -> MadeKey:
    return await create_link(place.ledger, "dana", Grant(role="viewer"), by="ann")


async def test_logging_out_needs_a_form_of_ones_own(home: House) -> None:
    made = await home.key()
    cookie = await _log_in(home, made.secret)
    session = home.access.sessions.read(cookie, secure=False)
    assert session is not None
    other = home.access.sessions.form_token("session of somebody else")
    own = home.access.sessions.form_token(f"session {session.token}")
    async with home.client(headers={"cookie": cookie}) as browser:
        page = (await browser.get("/")).text
        assert f'action="/logout"><input type="hidden" name="token" value="{own}">' in page
        assert (await browser.post("/logout", data={"token": other})).status_code == 403
        answer = await browser.post("/logout", data={"token": own})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert "Max-Age=0" in answer.headers["set-cookie"]


async def test_a_foreign_host_is_sent_away(home: House) -> None:
    async with home.client() as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost:8080:x", "10.0.0.7"):
            assert code_of(await client.get("/v1/me", headers={"host": host})) == "MISDIRECTED", host
    async with home.account() as client:
        for host in ("127.0.0.1:8080", "localhost", "[::1]:8080", "LOCALHOST:1"):
            assert (await client.get("/v1/me", headers={"host": host})).status_code == 200, host


async def test_a_page_of_another_site_changes_nothing(home: House) -> None:
    body = {"name": "planted", "role": "admin"}
    async with home.browser() as client:
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:9"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = await client.post("/v1/keys", json=body, headers=headers)
            assert code_of(answer) == "CROSS_SITE", headers
            assert code_of(await client.get("/v1/run", headers=headers)) == "CROSS_SITE", headers
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = await client.post("/v1/keys", content=b"{}", headers={"content-type": kind})
            assert code_of(answer) == "CROSS_SITE", kind
        assert await list_keys(home.ledger) == []
        ours = {"origin": BASE, "sec-fetch-site": "same-origin"}
        assert code_of(await client.get("/v1/run", headers=ours)) == "NO_APP"
        assert (await client.post("/v1/keys", json=body, headers=ours)).status_code == 201


async def test_no_page_elsewhere_may_read_unless_its_origin_is_named(ledger: Ledger, tmp_path: Path) -> None:
    named = "https://app.example"
    ask = {"access-control-request-method": "POST"}
    async with house(ledger, tmp_path, origins=(named,)) as home, home.client() as client:
        made = await home.key()
        key = {"authorization": f"Bearer {made.secret}"}
        yes = await client.options("/v1/keys", headers={"origin": named, **ask})
        assert (yes.status_code, yes.headers["access-control-allow-origin"]) == (204, named)
        assert "access-control-allow-credentials" not in yes.headers
        seen = await client.get("/v1/me", headers={"origin": named, **key})
        assert (seen.status_code, seen.headers["access-control-allow-origin"]) == (200, named)
        no = await client.options("/v1/keys", headers={"origin": "https://evil.example", **ask})
        assert "access-control-allow-origin" not in no.headers
    async with house(ledger, tmp_path) as home, home.client() as client:
        answer = await client.options("/v1/keys", headers={"origin": named, **ask})
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_who_asks_too_much_is_told_when_to_come_again(ledger: Ledger, tmp_path: Path) -> None:
    few = {"read": Quota(count=3, window_s=600)}
    async with house(ledger, tmp_path, quotas=few) as home:
        one, other = await home.key("one"), await home.key("other")
        async with home.holder(one) as client, home.holder(other) as second:
            found = [await client.get("/v1/me") for _ in range(4)]
            assert [code_of(each) for each in found] == [200, 200, 200, "RATE_LIMITED"]
            assert [each.headers["ratelimit"].partition(";t")[0] for each in found] == [
                '"read";r=2', '"read";r=1', '"read";r=0', '"read";r=0',
            ]  # fmt: skip
            assert found[0].headers["ratelimit-policy"] == '"read";q=3;w=600'
            assert 0 < int(found[3].headers["retry-after"]) <= 200
            assert (await second.get("/v1/me")).status_code == 200
            assert code_of(await client.delete("/v1/keys/x")) == "JOB_ACCESS_DENIED", "another group"


async def test_a_proxy_that_is_believed_says_who_somebody_is(ledger: Ledger, tmp_path: Path) -> None:
    book = tmp_path / "people.toml"
    book.write_text('[users."dana@shop.example"]\nrole = "operator"\nqueues = ["mail*"]\n')
    trusted: dict[str, Any] = {
        "user_header": "X-Forwarded-User",
        "trust_from": ("10.0.0.0/8",),
        "people": book,
    }
    said = {"x-forwarded-user": "dana@shop.example"}
    async with house(ledger, tmp_path, **trusted) as home:
        async with home.client(peer="10.1.2.3", headers=said) as client:
            me = (await client.get("/v1/me")).json()
            assert (me["name"], me["queues"]) == ("user:dana@shop.example", ["mail*"])
            for wrong in ("eve@shop.example", "eve, dana@shop.example", "x" * 201):
                answer = await client.get("/v1/me", headers={"x-forwarded-user": wrong})
                assert code_of(answer) == "UNAUTHENTICATED", wrong
            me = (await client.get("/v1/me", headers={"x-forwarded-user": " dana@shop.example \t"})).json()
            assert me["name"] == "user:dana@shop.example", "blanks around it are not of the name"
            theirs = {"authorization": "Bearer of-the-provider"}  # which some proxies hand on
            assert (await client.get("/v1/me", headers=theirs)).json()["name"] == "user:dana@shop.example"
            forged = await client.post(
                "/v1/keys", json={}, headers={**theirs, "origin": "https://evil.example"}
            )
            assert code_of(forged) == "CROSS_SITE", "a browser may send that by itself"
            posted = await client.post("/v1/keys", json={}, headers={"sec-fetch-site": "cross-site"})
            assert code_of(posted) == "CROSS_SITE"
        async with home.client(peer="192.0.2.1", headers=said) as client:
            assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


async def test_a_name_of_a_proxy_is_read_in_utf_8(ledger: Ledger, tmp_path: Path) -> None:
    book = tmp_path / "people.toml"
    book.write_text('[users."Zoë"]\nrole = "viewer"\n', encoding="utf-8")
    trusted: dict[str, Any] = {"user_header": "X-User", "trust_from": ("10.0.0.0/8",), "people": book}
    async with house(ledger, tmp_path, **trusted) as home, home.client(peer="10.1.2.3") as client:
        me = (await client.get("/v1/me", headers={b"x-user": "Zoë".encode()})).json()
        assert me["name"] == "user:Zoë"
        for wrong in ("Zoë".encode("latin-1"), b"\xff", "\u00a0Zoë".encode()):
            assert code_of(await client.get("/v1/me", headers={b"x-user": wrong})) == "UNAUTHENTICATED"


async def test_a_proxy_that_nobody_named_gives_nobody_rights(ledger: Ledger, tmp_path: Path) -> None:
    said = {
        "x-forwarded-for": "192.0.2.7",
        "X-Forwarded-Host": "jobs.example",
        "x-forwarded-anything": "1",
        "forwarded": "for=192.0.2.7",
        "x-real-ip": "192.0.2.7",
        "via": "1.1 squid",
    }
    async with house(ledger, tmp_path) as home, home.client() as client:
        for name, value in said.items():
            for method, path in (("GET", "/v1/me"), ("POST", "/v1/jobs"), ("GET", "/"), ("POST", "/in/shop")):
                answer = await client.request(method, path, headers={name: value})
                assert (answer.status_code, name.lower() in answer.text) == (421, True), (name, path)
            assert (await client.get("/healthz", headers={name: value})).status_code == 200
    async with house(ledger, tmp_path) as home, home.account() as client:
        assert (await client.get("/v1/me")).status_code == 200
    settings: dict[str, Any] = {"behind_proxy": ("10.0.0.0/8",)}
    async with house(ledger, tmp_path, **settings) as home:
        made = await home.key()
        async with home.holder(made, peer="10.0.0.1") as client:
            for name, value in said.items():
                assert (await client.get("/v1/me", headers={name: value})).status_code == 200, name


async def test_a_get_that_runs_jobs_needs_a_key_or_says_that_it_comes_from_here(home: House) -> None:
    async with home.browser() as client:
        assert code_of(await client.get("/v1/run")) == "CROSS_SITE", (
            "as an image of any page in an old browser"
        )
        assert code_of(await client.get("/v1/run", headers={"sec-fetch-site": "none"})) == "CROSS_SITE"
        assert code_of(await client.get("/v1/run", headers={"sec-fetch-site": "same-origin"})) == "NO_APP"
        assert code_of(await client.get("/v1/run", headers={"origin": BASE})) == "NO_APP"
        assert code_of(await client.post("/v1/run", json={})) == "NO_APP"
    made = await home.key(role="operator")
    async with home.holder(made) as client:
        assert code_of(await client.get("/v1/run")) == "NO_APP"


async def test_a_proxy_in_front_says_where_a_request_began(ledger: Ledger, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"behind_proxy": ("10.0.0.0/8",), "hosts": ("jobs.example",)}
    async with house(ledger, tmp_path, is_loopback=False, **settings) as home:
        made = await home.key()
        on_https = {"x-forwarded-proto": "https", "x-forwarded-for": "6.6.6.6, 192.0.2.7, 10.0.0.9"}
        async with home.client("http://jobs.example", peer="10.0.0.1", headers=on_https) as client:
            answer = await client.post(
                "/login", data={"key": made.secret}, headers={"origin": "https://jobs.example"}
            )
            assert answer.headers["set-cookie"].startswith("__Host-")
        async with home.holder(made, peer="10.0.0.1") as client:
            assert (await client.get("/v1/me", headers=on_https)).status_code == 200
        await home.access.uses.store()
        (info,) = await list_keys(ledger)
        assert (info.last_used_from, info.last_used_at is not None) == ("192.0.2.7", True)


async def test_who_comes_through_a_proxy_on_this_machine_is_not_the_account(
    ledger: Ledger, tmp_path: Path
) -> None:
    async with house(ledger, tmp_path, behind_proxy=("127.0.0.1",)) as home, home.client() as client:
        assert code_of(await client.get("/v1/me")) == "UNAUTHENTICATED"


async def test_a_stream_ends_when_the_key_does_that_opened_it(home: House) -> None:
    made, kept = await home.key(role="viewer"), await home.key("kept", role="viewer")
    async with listening(home.gateway) as url, httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        ends: list[str] = []

        async def read(name: str, secret: str, begun: asyncio.Event) -> None:
            headers = {"authorization": f"Bearer {secret}"}
            async with client.stream("GET", "/v1/events?from=1", headers=headers) as response:
                assert response.status_code == 200
                with contextlib.suppress(httpx.RemoteProtocolError):
                    async for _ in events_of(response):
                        begun.set()
            ends.append(name)

        begun = [asyncio.Event(), asyncio.Event()]
        readers = [
            asyncio.create_task(read("ended", made.secret, begun[0])),
            asyncio.create_task(read("kept", kept.secret, begun[1])),
        ]
        async with asyncio.timeout(LIMIT_S):
            for each in begun:
                await each.wait()
        await revoke_key(home.ledger, made.info.key, by="ann")
        async with asyncio.timeout(LIMIT_S):
            await readers[0]
        assert ends == ["ended"]
        readers[1].cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _nothing(_at: float) -> None:
    """Prove nothing."""


async def test_an_answer_that_was_waited_for_is_not_given_to_a_key_that_ended(home: House) -> None:
    made = await home.key(role="viewer")
    lines = {"accept": "application/x-ndjson"}
    async with home.holder(made) as holder:
        waiting = asyncio.create_task(holder.get("/v1/events?from=1&queue=mail&wait=20", headers=lines))
        await until(lambda: home.feed.is_reading)
        await revoke_key(home.ledger, made.info.key, by="ann")
        await home.heard_of(made.info.key, "revoked")
        job = await home.ledger.enqueue(send, to="ann")  # what is waited for
        async with asyncio.timeout(LIMIT_S):
            answer = await waiting
        assert (code_of(answer), job.id in answer.text) == ("UNAUTHENTICATED", False)


async def test_of_a_body_that_goes_on_nothing_is_taken_once_its_key_ended(home: House) -> None:
    made = await home.key(role="admin")
    key = made.info.key

    async def body() -> AsyncIterator[bytes]:
        yield b'{"name": "planted", '
        await revoke_key(home.ledger, key, by="ann")
        await home.heard_of(key, "revoked")
        yield b'"role": "admin"}'

    async with home.holder(made) as holder:
        answer = await holder.post("/v1/keys", content=body(), headers={"content-type": "application/json"})
    assert code_of(answer) == "UNAUTHENTICATED"
    assert await list_keys(home.ledger) == []


async def test_a_gateway_that_cannot_read_the_keys_lets_nobody_in(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await home.key()
    async with home.holder(made) as holder:
        assert (await holder.get("/v1/me")).status_code == 200
        monkeypatch.setattr(home.access.ring, "prove", _nothing)
        later = home.ledger.clock.monotonic() + 11
        monkeypatch.setattr(home.access.ring._clock, "monotonic", lambda: later, raising=False)
        monkeypatch.setattr(guard, "_SURE_WITHIN_S", 0.3)
        answer = await holder.get("/v1/me")
        assert (answer.status_code, code_of(answer)) == (503, "LEDGER_UNREACHABLE")


async def test_a_request_waits_for_a_while_until_the_keys_are_known_again(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as an election lasts; who comes when very many wait is refused at once."""
    made = await home.key()
    async with home.holder(made) as holder:
        assert (await holder.get("/v1/me")).status_code == 200
        monkeypatch.setattr(ring, "STALE_S", -1.0)
        monkeypatch.setattr(guard, "_WAITING_MAX", 1)
        asked = [asyncio.create_task(holder.get("/v1/me")) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 503
        assert refused.result().headers["retry-after"]
        monkeypatch.setattr(ring, "STALE_S", 10.0)
        assert (await waiting).status_code == 200


async def test_keys_are_followed_anew_when_reading_them_failed(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = home.ledger.log.newest_sequence
    failed = asyncio.Event()

    async def fails(chain: str) -> int:
        failed.set()
        raise TimeoutError

    monkeypatch.setattr(home.ledger.log, "newest_sequence", fails)
    async with asyncio.timeout(LIMIT_S):
        await failed.wait()
    monkeypatch.setattr(home.ledger.log, "newest_sequence", reading)
    made = await home.key()
    rotated = await rotate_key(home.ledger, made.info.key, by="ann")
    await until(
        lambda: _digest(home, made.info.key) != "" and not _is_old(home, rotated.info.key), limit_s=LIMIT_S
    )


def _is_old(place: House, key: str) -> bool:
    found = place.access.ring.find(key)
    return found is None or found.at == found.made_at


async def test_who_may_ask_is_not_known_for_a_while(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has acted is answered as it is, a read with 503, which says that it may be tried again; never with 401."""
    entry = entry_of(send, worker="web-1-0a", at=home.ledger.clock.now())
    await write_tasks(home.ledger.inbox, home.ledger.names, [entry], replicas=1)
    made = await home.key("app", role="admin")
    async with home.holder(made) as holder:
        wanted = {"task": "send", "input": {"to": "ann"}, "id": "a"}
        acting = asyncio.create_task(holder.post("/v1/jobs", json=wanted, headers={"prefer": "wait=1"}))
        await until(lambda: home.gateway.shares.open["waits"] == 1)
        reading = asyncio.create_task(holder.get("/v1/jobs/mail/a/result", headers={"prefer": "wait=1"}))
        await until(lambda: home.gateway.shares.open["waits"] == 2)
        monkeypatch.setattr(ring, "STALE_S", -1.0)
        monkeypatch.setattr(guard, "_SURE_WITHIN_S", 0.3)
        home.access.gate.sweep()
        assert code_of(await acting) == 202
        assert code_of(await reading) == "LEDGER_UNREACHABLE"
        assert (await reading).headers["retry-after"]
        assert code_of(await holder.get("/v1/me")) == "LEDGER_UNREACHABLE"
        monkeypatch.undo()
        assert (await holder.get("/v1/me")).status_code == 200
