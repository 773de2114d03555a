"""Wrong settings of `connect` get a sentence, and no secret among them is shown."""

from __future__ import annotations

from typing import Any

import pytest
from rich.pretty import pretty_repr
from tests.support.tables import each_row

from jobledger.ledger import LedgerConfig, connect
from jobledger.ledger.model.errors import ConfigurationError

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


@each_row(
    ("name", "value"),
    [
        ("nkey", SEED),
        ("nkey", f"{SEED} # of the worker"),
        ("creds", f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"),
    ],
)
def test_a_seed_in_the_place_of_its_file_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is a seed itself: put it into a file") as caught:
        LedgerConfig(**{name: value})  # type: ignore[arg-type]
    assert SEED not in str(caught.value)


def test_no_way_of_showing_a_configuration_shows_its_password() -> None:
    config = LedgerConfig(user="app", password="sesame-secret")
    for shown in (repr(config), str(config), pretty_repr(config)):
        assert "app" not in shown or "sesame-secret" not in shown
        assert "sesame-secret" not in shown


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"nats_options": {"connect_timeout": 1}}, "nats_options cannot set connect_timeout"),
        ({"nats_options": {"error_cb": print}}, "nats_options cannot set error_cb"),
        ({"connect_timeout_s": "5"}, "connect_timeout_s must be a number of seconds"),
        ({"url": ["nats://127.0.0.1:1"]}, "url must be one text"),
        ({"url": 5}, "url must be one text"),
    ],
)
async def test_a_wrong_setting_is_named(settings: dict[str, Any], sentence: str) -> None:
    given: Any = {"url": "nats://127.0.0.1:1", **settings}
    with pytest.raises(ConfigurationError, match=sentence):
        async with connect(**given):
            pass
