"""How sessions of browsers end: by their age, by logging out on any gateway, and by what a provider says of a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.clocks import MovedClock
from tests.support.keyholders import BASE, House, code_of, house
from tests.support.limits import LIMIT_S
from tests.support.working import until

from jobledger.gateway.access.keys import AccessSettings
from jobledger.gateway.access.oidc import OidcSettings, Person
from jobledger.gateway.access.sessions import SESSION_S, Sessions
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import ConfigurationError

pytestmark = pytest.mark.anyio
FORM = {"origin": BASE, "sec-fetch-site": "same-origin"}
PAGE = {"sec-fetch-mode": "navigate"}
PEOPLE = '[groups.ops]\nrole = "operator"\n[groups.staff]\nrole = "viewer"\n'


@pytest.fixture
async def home(ledger: Ledger, tmp_path: Path) -> AsyncIterator[House]:
    async with house(ledger, tmp_path) as made:
        yield made


@pytest.fixture
async def staffed(ledger: Ledger, tmp_path: Path) -> AsyncIterator[House]:
    """A gateway with a provider that nobody asks."""
    (tmp_path / "people.toml").write_text(PEOPLE)
    oidc = OidcSettings(issuer="https://login.example", client_id="jobledger")
    async with house(ledger, tmp_path, people=tmp_path / "people.toml", oidc=oidc) as made:
        yield made


async def _log_in(browser: httpx.AsyncClient, secret: str) -> str:
    """Log in by a key; return the token of forms."""
    assert (await browser.post("/login", data={"key": secret}, headers=FORM)).status_code == 303
    page = (await browser.get("/")).text
    return page.partition('name="token" value="')[2].partition('"')[0]


async def test_a_session_ends_at_its_age_however_it_is_used() -> None:
    clock = MovedClock()
    sessions = Sessions([b"k" * 43], clock)
    session = sessions.open(key="k", sha256="a")
    cookie = sessions.cookie(session, secure=True)
    for _ in range(11):
        clock.move(3_600)
        found = sessions.read(cookie, secure=True)
        assert found is not None
        cookie = sessions.cookie(found, secure=True)
        assert found.began == session.began
    assert "Max-Age=3600" in cookie
    clock.move(3_599)
    assert sessions.read(cookie, secure=True) is not None
    clock.move(1)
    assert sessions.read(cookie, secure=True) is None
    assert not sessions.holds(session), "a stream of events that it opened ends, too"


@pytest.mark.parametrize("age_s", [0.0, -1.0, 31 * 24 * 3600.0])
def test_an_age_beyond_reason_is_refused(tmp_path: Path, age_s: float) -> None:
    with pytest.raises(ConfigurationError, match="--session-age"):
        AccessSettings(session_key=tmp_path / "k", session_s=age_s)


async def test_logging_out_ends_the_session_on_every_gateway(
    home: House, ledger: Ledger, tmp_path: Path
) -> None:
    made = await home.key("dana", role="operator")
    async with house(ledger, tmp_path) as other, home.client() as browser, other.client() as thief:
        form = await _log_in(browser, made.secret)
        thief.cookies = httpx.Cookies(browser.cookies)
        kept = browser.cookies["jobledger"]
        assert (await thief.get("/v1/me")).status_code == 200
        assert (await browser.post("/logout", data={"token": form}, headers=FORM)).status_code == 303
        async with home.client(headers={"cookie": f"jobledger={kept}"}) as again:
            assert code_of(await again.get("/v1/me")) == "UNAUTHENTICATED", "here at once"
        session = home.access.sessions.read(f"jobledger={kept}", secure=False)
        assert session is None

        async def is_out() -> bool:
            return code_of(await thief.get("/v1/me")) == "UNAUTHENTICATED"

        for _ in range(100):
            if await is_out():
                break
            await until(lambda: bool(other.access.sessions._ended), limit_s=LIMIT_S)
        assert await is_out()
        await _log_in(thief, made.secret)
        assert (await thief.get("/v1/me")).status_code == 200, "the key opens another session"
    async with (
        house(ledger, tmp_path) as later,
        later.client(headers={"cookie": f"jobledger={kept}"}) as thief,
    ):
        assert code_of(await thief.get("/v1/me")) == "UNAUTHENTICATED", "a gateway that starts later knows it"


def _person(place: House, browser: httpx.AsyncClient, age_s: int, *groups: str) -> None:
    """Give a browser the session of a person whom the provider confirmed some time ago."""
    sessions = place.access.sessions
    made = sessions.open(user="dana@shop.example", groups=groups)
    session = type(made)(
        user=made.user, groups=groups, token=made.token, began=made.began - age_s, issued=made.issued - age_s
    )
    cookie = sessions.cookie(session, secure=False).partition(";")[0].partition("=")[2]
    browser.cookies.set("jobledger", cookie, domain="127.0.0.1", path="/")


async def _come_back(
    place: House, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, answer: Person | str
) -> tuple[str, httpx.Response]:
    """Load a page and follow it through the provider; return where the provider was asked, and the answer here."""
    provider = place.access.provider
    assert provider is not None
    asked = list[bool]()

    async def begin(back: str, *, silently: bool = False) -> tuple[str, dict[str, str]]:
        asked.append(silently)
        return f"https://login.example/?back={back}", {"state": "s", "nonce": "n", "verifier": "v"}

    async def finish(code: str, back: str, passing: dict[str, str]) -> Person:
        del code, back, passing
        assert isinstance(answer, Person)
        return answer

    monkeypatch.setattr(provider, "begin", begin)
    monkeypatch.setattr(provider, "finish", finish)
    sent = await browser.get("/jobs?queue=mail", headers=PAGE)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?after=/jobs%3Fqueue%3Dmail")
    sent = await browser.get(sent.headers["location"], headers=PAGE)
    assert (sent.status_code, sent.headers["location"][:12]) == (303, "/login/oidc?")
    sent = await browser.get(sent.headers["location"], headers=PAGE)
    assert (asked, sent.headers["location"][:22]) == ([True], "https://login.example/")
    given = {"error": answer} if isinstance(answer, str) else {"code": "c"}
    return sent.headers["location"], await browser.get("/login/oidc/callback", params={"state": "s", **given})


async def test_the_provider_says_the_groups_again_at_each_renewal(
    staffed: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staffed.client() as browser:
        _person(staffed, browser, 800, "ops")
        assert (await browser.get("/jobs", headers=PAGE)).status_code == 200, "it was confirmed just now"
        _person(staffed, browser, 1_000, "ops")
        began = staffed.access.sessions.read(f"jobledger={browser.cookies['jobledger']}", secure=False)
        assert (await browser.get("/v1/me")).json()["permissions"] != ["view"], (
            "only pages go by the provider"
        )
        moved = Person(user="dana@shop.example", groups=("staff",))
        _, answer = await _come_back(staffed, browser, monkeypatch, moved)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?queue=mail")
        assert (await browser.get("/v1/me")).json()["permissions"] == ["view"]
        assert (await browser.get("/jobs", headers=PAGE)).status_code == 200
        after = staffed.access.sessions.read(f"jobledger={browser.cookies['jobledger']}", secure=False)
        assert began is not None
        assert after is not None
        assert (after.began, after.token) == (began.began, began.token), "it is no younger by that"


@pytest.mark.parametrize(
    "answer", ["login_required", Person(user="dana@shop.example"), Person(user="eve@shop.example")]
)
async def test_a_session_ends_where_the_provider_does_not_confirm_it(
    staffed: House, monkeypatch: pytest.MonkeyPatch, answer: Person | str
) -> None:
    async with staffed.client() as browser:
        _person(staffed, browser, 1_000, "ops")
        kept = browser.cookies["jobledger"]
        assert (await browser.get("/v1/me")).status_code == 200
        _, said = await _come_back(staffed, browser, monkeypatch, answer)
        assert said.status_code == 401
        async with staffed.client(headers={"cookie": f"jobledger={kept}"}) as thief:
            assert code_of(await thief.get("/v1/me")) == "UNAUTHENTICATED"


async def test_nothing_is_answered_that_the_provider_did_not_confirm_for_an_hour(staffed: House) -> None:
    async with staffed.client() as browser:
        _person(staffed, browser, 3_590, "ops")
        assert (await browser.get("/v1/me")).status_code == 200
        _person(staffed, browser, 3_600, "ops")
        assert code_of(await browser.get("/v1/me")) == "UNAUTHENTICATED"
        sent = await browser.get("/", headers=PAGE)
        assert sent.headers["location"] == "/login?after=/"
        _person(staffed, browser, int(SESSION_S), "ops")
        assert (await browser.get("/login", headers=PAGE)).status_code == 200, (
            "over: the page with the button"
        )
