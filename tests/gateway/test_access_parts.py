"""Parts of access without a ledger: quotas, files of people and of signing keys, sessions that slide, where one may listen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.clocks import MovedClock as Clock
from tests.support.tables import each_row

from jobledger.admin.runs import Tree, TreeStep
from jobledger.gateway.access.exposure import may_listen
from jobledger.gateway.access.keys import AccessSettings
from jobledger.gateway.access.origins import Hosts, checked_origins, forwarded, is_among, networks
from jobledger.gateway.access.people import People
from jobledger.gateway.access.rates import Quota, Rates, group_of
from jobledger.gateway.access.ring import STALE_S, KeyRing
from jobledger.gateway.access.sessions import SESSION_S, Session, Sessions, signing_keys
from jobledger.gateway.pages.login import inside
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import tree_for
from jobledger.ledger.model.errors import AccessDeniedError, ConfigurationError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.projections.tables.steps import StepRow

KEY = b"k" * 43


def sessions_of(clock: Clock, *keys: bytes) -> Sessions:
    return Sessions(list(keys or (KEY,)), clock)


def test_a_session_slides_for_as_long_as_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions([KEY], clock, 5 * SESSION_S)
    session = sessions.open(key="k", sha256="a")
    cookie = sessions.cookie(session, secure=True)
    for _ in range(3):
        clock.move(SESSION_S - 1)
        found = sessions.read(cookie, secure=True)
        assert found is not None
        assert sessions.is_old(found)
        cookie = sessions.cookie(found, secure=True)
    assert not sessions.is_old(sessions.read(cookie, secure=True) or session)
    clock.move(SESSION_S)
    assert sessions.read(cookie, secure=True) is None


def test_a_session_is_read_with_any_key_of_the_file_and_no_other() -> None:
    clock, new = Clock(), b"n" * 43
    old = sessions_of(clock)
    cookie = old.cookie(old.open(user="dana", groups=("ops",)), secure=False)
    assert sessions_of(clock, KEY, new).read(f"a=b; {cookie}", secure=False) is not None
    assert sessions_of(clock, new).read(cookie, secure=False) is None
    assert old.read(cookie, secure=True) is None
    assert old.read("", secure=False) is None
    assert old.read("jobledger=", secure=False) is None


def test_a_session_from_the_future_is_none() -> None:
    clock = Clock()
    sessions = sessions_of(clock)
    cookie = sessions.cookie(Session(key="k", issued=0, token="t"), secure=False)
    clock.move(-3_600)
    assert sessions.read(cookie, secure=False) is None


def test_what_passes_between_a_provider_and_here_is_signed_and_short() -> None:
    clock = Clock()
    sessions = sessions_of(clock)
    cookie = sessions.passing("oidc", {"state": "s"}, 600, secure=False)
    assert sessions.passed(cookie, "oidc", 600, secure=False)["state"] == "s"
    assert sessions.passed(cookie.replace("jobledger-oidc", "jobledger"), "oidc", 600, secure=False) == {}
    assert sessions.read(cookie.replace("jobledger-oidc", "jobledger"), secure=False) is None
    clock.move(600)
    assert sessions.passed(cookie, "oidc", 600, secure=False) == {}


def test_the_signing_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "session.key"
    made = signing_keys(path)
    assert signing_keys(path) == made
    assert len(made[0]) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(made[0] + b"\n\n" + b"x" * 40 + b"\n")
    assert signing_keys(path) == [made[0], b"x" * 40]
    for wrong in (b"", b"short\n"):
        path.write_bytes(wrong)
        with pytest.raises(ConfigurationError, match="must hold signing keys of at least 32 characters"):
            signing_keys(path)


def test_a_bucket_fills_again_and_forgets_who_was_not_there_for_long() -> None:
    clock = Clock()
    rates = Rates(clock, {"write": Quota(count=2, window_s=10)})
    assert [rates.take("a", "write").retry_after_s for _ in range(4)] == [0, 0, 5, 5]
    assert rates.take("b", "write").retry_after_s == 0
    clock.move(5)
    assert [rates.take("a", "write").retry_after_s for _ in range(2)] == [0, 5]
    clock.move(3_600)
    assert dict(rates.take("a", "write").headers)[b"ratelimit"] == b'"write";r=1;t=5'
    for number in range(20_100):
        rates.take(f"n{number}", "write")
    assert len(rates._buckets) == 20_000
    assert [group_of(*each) for each in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("POST", "/v1/jobs/bulk"))] == [
        "read", "write", "bulk",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="a quota needs a count"):
        Quota(count=0, window_s=1)


BOOK = """
[users."dana@shop.example"]
role = "operator"
queues = ["mail*", "*"]
[groups.ops]
permissions = ["view", "run"]
tasks = ["report"]
"""


def _who(people: People, user: str, *groups: str) -> Principal | None:
    return people.principal(user, groups)


def test_people_may_do_what_the_file_says_as_it_is_now(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "people.toml"
    path.write_text(BOOK)
    people = People(path, clock)
    dana, eve = _who(people, "dana@shop.example", "ops"), _who(people, "eve", "none", "ops")
    assert dana is not None
    assert eve is not None
    assert (dana.name, dana.queues, "admin" in dana.permissions) == ("user:dana@shop.example", ("*",), False)
    assert (sorted(eve.permissions), eve.tasks) == (["run", "view"], ("report",))
    assert _who(people, "mallory") is None
    path.write_text("[everyone]\nrole = 'viewer'\n")
    assert _who(people, "mallory") is None, "looked at once a second"
    clock.move(1)
    assert _who(people, "mallory") is not None
    for wrong in (
        "[everyone",
        "[users.x]\nrole = 'root'\n",
        "[users.x]\n",
        "[users.x]\nrole='viewer'\nqueue=[]\n",
    ):
        path.write_text(wrong)
        clock.move(1)
        assert _who(people, "mallory") is None
        with pytest.raises(ConfigurationError, match="does not say what people may do"):
            People(path, clock)
    path.unlink()
    clock.move(1)
    assert _who(people, "dana@shop.example") is None


@each_row(
    ("given", "sentence"),
    [
        ({"is_loopback": True}, ""),
        ({"is_loopback": True, "has_login": True}, ""),
        ({"is_loopback": True, "behind_proxy": True}, "without a key everybody"),
        ({"is_loopback": True, "has_login": True, "behind_proxy": True}, ""),
        ({"tls": True}, "without a key everybody"),
        ({"has_login": True}, "keys must not be sent in the clear"),
        ({"has_login": True, "tls": True}, ""),
        ({"has_login": True, "behind_proxy": True}, ""),
        ({"behind_proxy": True}, "without a key everybody"),
    ],
)
def test_where_a_gateway_may_listen(given: dict[str, bool], sentence: str) -> None:
    said = {"is_loopback": False, "has_login": False, "tls": False, "behind_proxy": False} | given
    if not sentence:
        may_listen(**said)
        return
    with pytest.raises(ConfigurationError, match=sentence):
        may_listen(**said)


@each_row(
    ("settings", "sentence"),
    [
        ({"user_header": "X-User"}, "belong together"),
        ({"trust_from": ("10.0.0.1",)}, "belong together"),
        ({"user_header": "X-User", "trust_from": ("10.0.0.1",)}, "give --people FILE"),
    ],
)
def test_settings_that_let_in_everybody_or_nobody_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        AccessSettings(session_key=Path("x"), **settings)


@each_row(
    ("peer", "said", "expected"),
    [
        ("192.0.2.1", {"x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https"}, ("192.0.2.1", "http")),
        ("10.0.0.1", {"x-forwarded-for": "6.6.6.6, 192.0.2.7"}, ("192.0.2.7", "http")),
        ("10.0.0.1", {"x-forwarded-for": "192.0.2.7, 10.0.0.2"}, ("192.0.2.7", "http")),
        ("10.0.0.1", {"x-forwarded-for": "junk, 10.0.0.2"}, ("10.0.0.2", "http")),
        ("10.0.0.1", {"x-forwarded-proto": "ftp"}, ("10.0.0.1", "http")),
        ("10.0.0.1", {"x-forwarded-proto": "http, https"}, ("10.0.0.1", "https")),
        ("::ffff:10.0.0.1", {"x-forwarded-for": "192.0.2.7"}, ("192.0.2.7", "http")),
    ],
)
def test_a_proxy_is_believed_only_from_its_address(
    peer: str, said: dict[str, str], expected: tuple[str, str]
) -> None:
    assert forwarded(peer, said, "http", networks("--behind-proxy", ["10.0.0.0/8"])) == expected


def test_addresses_and_origins_are_read_or_refused_with_a_sentence() -> None:
    assert is_among("fe80::1%eth0", networks("x", ["fe80::/10"]))
    assert not is_among("nonsense", networks("x", ["0.0.0.0/0"]))
    with pytest.raises(ConfigurationError, match="--trust-from: 'proxy' does not appear"):
        networks("--trust-from", ["proxy"])
    assert checked_origins(["https://App.example"]) == {"https://app.example"}
    for wrong in ("https://a.example/", "a.example", "ftp://a.example", "*"):
        with pytest.raises(ConfigurationError, match="is no origin"):
            checked_origins([wrong])


def test_beyond_loopback_a_host_is_an_address_or_a_name_that_was_given() -> None:
    hosts = Hosts(["Jobs.example."], is_loopback=False)
    for host in ("jobs.example:443", "192.0.2.1", "[2001:db8::1]:8080", "localhost"):
        hosts.check(host)
    with pytest.raises(ProblemError, match="--allow-host NAME"):
        hosts.check("evil.example")


def test_a_ring_that_nobody_proved_for_long_lets_nobody_in() -> None:
    clock = Clock()
    ring = KeyRing(clock)
    with pytest.raises(ProblemError, match="could not read yet which keys"):
        ring.find("x")
    ring.prove(clock.monotonic())
    clock.move(STALE_S)
    assert ring.find("x") is None
    clock.move(0.001)
    with pytest.raises(ProblemError, match="could not read for 10 s which keys"):
        ring.find("x")


@each_row(
    ("address", "expected"),
    [
        ("/jobs?queue=mail", "/jobs?queue=mail"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\\b", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nset-cookie: x", "/"),
        ("/jobs/a b", "/jobs/a%20b"),
    ],
)
def test_after_logging_in_one_stays_here(address: str, expected: str) -> None:
    assert inside(address) == expected


def test_whoever_is_bound_to_some_queues_may_not_change_what_belongs_to_none() -> None:
    bound = Principal(name="eve", permissions=frozenset({"manage"}), queues=("mail*",))
    bound.require("manage", "mail-2", "any")
    with pytest.raises(AccessDeniedError, match="bound to some queues"):
        bound.require_everywhere("manage")
    with pytest.raises(AccessDeniedError, match="lacks the permission 'manage' for queue web"):
        bound.require("manage", "web")
    assert bound.scope.has("mail", "x")
    assert not bound.scope.has("web", "x")
    Principal(name="ann", permissions=frozenset({"manage"})).require_everywhere("manage")


def test_a_tree_of_jobs_has_none_that_its_reader_may_not_see() -> None:
    def tree(queue: str, task: str, *children: Tree) -> Tree:
        row = dict.fromkeys(StepRow.__struct_fields__)
        steps = (TreeStep(step=StepRow(**cast("Any", row)), children=children, hidden=2),) if children else ()
        blank = {"version": None, "awaiting": None, "item": None, "error": None}
        known = {
            "status": "running",
            "since": "",
            "started_at": None,
            "completed_at": None,
            "late": False,
            "undos": 0,
            "steps": steps,
        }
        return Tree(queue=queue, id=task, task=task, **cast("Any", {**blank, **known}))

    below = tree("mail", "send", tree("vault", "send"), tree("mail", "open"), tree("mail", "send"))
    seen = tree_for(
        Principal(name="eve", permissions=frozenset({"view"}), queues=("mail",), tasks=("send",)),
        tree("mail", "send", tree("vault", "melt", below), below),
    )
    assert (seen.steps[0].hidden, [each.task for each in seen.steps[0].children]) == (3, ["send"])
    [left] = seen.steps[0].children
    assert (left.steps[0].hidden, [each.queue for each in left.steps[0].children]) == (4, ["mail"])
