"""Schemes of signatures: the providers' own published examples, and what must not pass."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook
from tests.support.tables import each_row

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.schemes import (
    PRESETS,
    Scheme,
    UnverifiedRequest,
    VerifiedRequest,
    check_scheme,
    delivery_named,
    sign,
    verify,
)

#: The example of GitHub's page "Validating webhook deliveries".
GITHUB = (
    "github",
    "It's a Secret to Everybody",
    {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
    b"Hello, World!",
    None,
)
#: The example of Slack's page "Verifying requests from Slack".
SLACK = (
    "slack",
    "8f742231b10e8888abcd99yyyzzz85a5",
    {
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "X-Slack-Request-Timestamp": "1531420618",
    },
    (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    ),
    1531420618,
)
#: The example of the specification of Standard Webhooks.
STANDARD = (
    "standard",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
    b'{"test": 2432232314}',
    1614265330,
)
SENT = 1_700_000_000
PUBLISHED = [GITHUB, SLACK, STANDARD]


def signed(name: str, secret: str, body: bytes, **changes: str) -> dict[str, str]:
    scheme = PRESETS[name]
    headers = {scheme.header: sign(scheme, secret, body, timestamp=str(SENT), delivery="d1")}
    if scheme.timestamp_header and scheme.timestamp_header != scheme.header:
        headers[scheme.timestamp_header] = str(SENT)
    if scheme.id_header:
        headers[scheme.id_header] = "d1"
    return {**headers, **changes}


SECRETS = {"standard": "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()}
MADE = [
    (name, secret, signed(name, secret, b'{"id": "evt_1"}'), b'{"id": "evt_1"}', SENT)
    for name in PRESETS
    if (secret := SECRETS.get(name, "a secret"))
]
EACH = [*PUBLISHED, *MADE]


def verified(
    name: str,
    secrets: list[str],
    headers: dict[str, str],
    body: bytes,
    sent: int | None,
    *,
    late_s: float = 0,
) -> VerifiedRequest | UnverifiedRequest:
    now = datetime.fromtimestamp(sent or SENT, UTC) + timedelta(seconds=late_s)
    lowered = {header.lower(): value for header, value in headers.items()}
    return verify(PRESETS[name], secrets, lowered, body, now=now, tolerance_s=300)


Row = tuple[str, str, dict[str, str], bytes, int | None]


@each_row("row", EACH)
def test_a_providers_own_signature_is_verified(row: Row) -> None:
    name, secret, headers, body, sent = row
    found = verified(name, [secret], headers, body, sent)
    expected = sent if PRESETS[name].timestamp_header else None
    assert found == VerifiedRequest(1, expected)


@each_row("row", EACH)
def test_any_of_several_secrets_may_fit_and_which_is_told(row: Row) -> None:
    name, secret, headers, body, sent = row
    found = verified(name, ["another", secret], headers, body, sent)
    assert isinstance(found, VerifiedRequest)
    assert found.secret == 2


@each_row("row", EACH)
def test_a_retired_or_an_empty_secret_fits_nothing(row: Row) -> None:
    name, _, headers, body, sent = row
    for secrets in ([], ["another"], [""], ["whsec_"], ["whsec_###"]):
        found = verified(name, secrets, headers, body, sent)
        assert isinstance(found, UnverifiedRequest)
        assert found.code == "BAD_SIGNATURE"


@each_row("row", [row for row in EACH if PRESETS[row[0]].algorithm != "token"])
def test_no_byte_of_what_is_signed_may_be_another(row: Row) -> None:
    name, secret, headers, body, sent = row
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1
        assert isinstance(verified(name, [secret], headers, bytes(changed), sent), UnverifiedRequest), place
    assert isinstance(verified(name, [secret], headers, body + b" ", sent), UnverifiedRequest)
    scheme = PRESETS[name]
    for header in (scheme.header, "webhook-id" if name == "standard" else scheme.header):
        last = headers[header][-2]
        worse = headers[header][:-2] + ("B" if last != "B" else "C") + headers[header][-1]
        assert isinstance(verified(name, [secret], {**headers, header: worse}, body, sent), UnverifiedRequest)


@each_row("row", [row for row in EACH if PRESETS[row[0]].timestamp_header])
def test_an_old_request_is_refused_as_such_and_its_time_cannot_be_changed(row: Row) -> None:
    name, secret, headers, body, sent = row
    assert sent is not None
    for late_s in (-300, 300):
        assert isinstance(verified(name, [secret], headers, body, sent, late_s=late_s), VerifiedRequest)
    for late_s in (-301, 301, 10**9):
        found = verified(name, [secret], headers, body, sent, late_s=late_s)
        assert isinstance(found, UnverifiedRequest)
        assert found.code == "STALE_TIMESTAMP"
        assert "300 s" in found.why
    header = PRESETS[name].timestamp_header
    for other in (str(sent + 400), "", "now", "1e9", "٣"):
        given = {**headers, header: headers[header].replace(str(sent), other)}
        found = verified(name, [secret], given, body, sent, late_s=400)
        assert isinstance(found, UnverifiedRequest)
        assert found.code == "BAD_SIGNATURE"


@each_row("row", EACH)
def test_a_missing_header_is_named(row: Row) -> None:
    name, secret, headers, body, sent = row
    scheme = PRESETS[name]
    for header in {scheme.header, scheme.timestamp_header or scheme.header}:
        given = {key: value for key, value in headers.items() if key != header}
        found = verified(name, [secret], given, body, sent)
        assert isinstance(found, UnverifiedRequest)
        assert header in found.why


def test_stripe_may_send_several_signatures_and_ones_of_other_schemes() -> None:
    body, scheme = b'{"id": "evt_1"}', PRESETS["stripe"]
    right = sign(scheme, "new", body, timestamp=str(SENT)).partition(",")[2]
    header = f"t={SENT},v1={'0' * 64},{right},v0={'1' * 64}"
    assert verified("stripe", ["new"], {"Stripe-Signature": header}, body, SENT) == VerifiedRequest(1, SENT)
    only_old = header.replace("v1=", "v0=")
    assert isinstance(
        verified("stripe", ["new"], {"Stripe-Signature": only_old}, body, SENT), UnverifiedRequest
    )


def test_only_so_many_signatures_of_a_header_are_tried() -> None:
    secret, body = SECRETS["standard"], b"{}"
    headers = signed("standard", secret, body)
    right = headers["webhook-signature"]
    wrong = "v1," + base64.b64encode(bytes(32)).decode()
    for number, expected in ((15, VerifiedRequest), (16, UnverifiedRequest)):
        given = {**headers, "webhook-signature": " ".join([wrong] * number + [right])}
        assert isinstance(verified("standard", [secret], given, body, SENT), expected), number


def test_an_id_cannot_be_made_longer_at_the_cost_of_the_time() -> None:
    secret = SECRETS["standard"]
    headers = signed("standard", secret, b"1700000000.{}")
    moved = {**headers, "webhook-id": f"d1.{SENT}"}
    assert isinstance(verified("standard", [secret], moved, b"{}", SENT), UnverifiedRequest)


def test_what_the_package_of_standard_webhooks_signs_is_verified_and_the_other_way_round() -> None:
    secret, body = SECRETS["standard"], '{"type": "order.paid"}'
    now = datetime.now(UTC)
    theirs = Webhook(secret)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": theirs.sign("msg_1", now, body),
    }
    found = verify(PRESETS["standard"], [secret], headers, body.encode(), now=now, tolerance_s=300)
    assert isinstance(found, VerifiedRequest)
    own = sign(
        PRESETS["standard"], secret, body.encode(), timestamp=headers["webhook-timestamp"], delivery="msg_1"
    )
    assert theirs.verify(body, {**headers, "webhook-signature": own}) == {"type": "order.paid"}


@each_row(
    "scheme, header",
    [
        (Scheme(header="X-Sig", algorithm="sha1", encoding="hex"), "X-Sig"),
        (Scheme(header="X-Sig", algorithm="sha512", encoding="base64", prefix="v9 "), "X-Sig"),
        (
            Scheme(
                header="X-Sig", signed="{timestamp}|{id}|{body}|", timestamp_header="X-T", id_header="X-I"
            ),
            "X-Sig",
        ),
        (Scheme(header="X-Key", algorithm="token"), "X-Key"),
    ],
)
def test_a_scheme_of_ones_own_is_free_in_all_its_parts(scheme: Scheme, header: str) -> None:
    given = {
        header.lower(): sign(scheme, "s", b"body", timestamp=str(SENT), delivery="d"),
        "x-t": str(SENT),
        "x-i": "d",
    }
    now = datetime.fromtimestamp(SENT, UTC)
    found = verify(scheme, ["s"], given, b"body", now=now, tolerance_s=0)
    assert isinstance(found, VerifiedRequest)
    assert isinstance(verify(scheme, ["t"], given, b"body", now=now, tolerance_s=0), UnverifiedRequest)


@each_row(
    "settings, sentence",
    [
        ({"header": ""}, "header must be the name of a header"),
        ({"header": "a b"}, "header must be the name of a header"),
        ({"header": "a", "signed": "{timestamp}"}, "signed must hold {body} once"),
        ({"header": "a", "signed": "{body}{body}"}, "signed must hold {body} once"),
        ({"header": "a", "signed": "{body}{secret}"}, "signed must hold {body} once"),
        ({"header": "a", "signed": "{body}}"}, "signed must hold {body} once"),
        ({"header": "a", "signed": "{body}" + "x" * 200}, "at most 200"),
        ({"header": "a", "signed": "{timestamp}.{body}"}, "belong together"),
        ({"header": "a", "timestamp_header": "t"}, "belong together"),
        ({"header": "a", "signed": "{id}.{body}"}, "say in id_header where it is"),
        ({"header": "a", "id_header": "i", "id_at": "/id"}, "not both"),
        ({"header": "a", "id_at": "id"}, "no JSON pointer"),
        ({"header": "a", "separator": "|"}, "separator must be"),
        ({"header": "a", "algorithm": "token", "timestamp_header": "t"}, "a token proves no timestamp"),
    ],
)
def test_a_scheme_that_could_not_verify_what_it_says_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_scheme(Scheme(**settings))
    assert sentence in str(refused.value)


@given(st.binary(max_size=100), st.text(max_size=60), st.text(max_size=200), st.sampled_from(sorted(PRESETS)))
def test_no_request_breaks_the_verifier(body: bytes, secret: str, header: str, name: str) -> None:
    scheme = PRESETS[name]
    headers = {scheme.header.lower(): header, scheme.timestamp_header.lower(): header, "webhook-id": "d"}
    found = verify(scheme, [secret], headers, body, now=datetime.fromtimestamp(SENT, UTC), tolerance_s=300)
    assert isinstance(found, UnverifiedRequest) or scheme.algorithm == "token"


@each_row(
    "name, headers, document, expected",
    [
        ("github", {"x-github-delivery": " 72d3162e "}, {}, "72d3162e"),
        ("github", {}, {"id": "x"}, ""),
        ("stripe", {}, {"id": "evt_1"}, "evt_1"),
        ("stripe", {}, {"id": 7}, ""),
        ("stripe", {}, [], ""),
        ("slack", {}, {"event_id": "Ev1"}, "Ev1"),
        ("standard", {"webhook-id": "msg_1"}, None, "msg_1"),
        ("bearer", {"authorization": "Bearer x"}, {"id": "x"}, ""),
    ],
)
def test_the_providers_id_is_found_where_the_scheme_says(
    name: str, headers: dict[str, str], document: Any, expected: str
) -> None:
    assert delivery_named(PRESETS[name], headers, document) == expected


def test_a_scheme_is_written_without_its_defaults_and_read_again() -> None:
    for scheme in PRESETS.values():
        check_scheme(scheme)
        assert msgspec.json.decode(msgspec.json.encode(scheme), type=Scheme) == scheme
    assert msgspec.json.encode(Scheme(header="X-Sig")) == b'{"header":"X-Sig"}'
