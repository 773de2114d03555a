"""Contexts of the `nats` command: what is read of a file, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobledger.ledger.config import with_variables
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.nats.contexts import settings_of_context


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".config" / "nats" / "context").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def _write(variables: dict[str, str], name: str, **fields: Any) -> None:
    path = Path(variables["HOME"], ".config", "nats", "context", f"{name}.json")
    path.write_text(json.dumps(fields))


def test_a_context_becomes_settings_of_connect(variables: dict[str, str]) -> None:
    _write(
        variables,
        "ngs.js",
        description="ours",
        url="nats://a:1,nats://b:1",
        token="",
        creds="~/own.creds",
        ca="/ca.pem",
        inbox_prefix="_INBOX_app",
        color_scheme="green",
    )
    assert settings_of_context("ngs.js", variables) == {
        "url": "nats://a:1,nats://b:1",
        "creds": f"{variables['HOME']}/own.creds",
        "tls_ca": "/ca.pem",
        "inbox_prefix": "_INBOX_app",
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"nsc": "nsc://o/a/u"}, "sets nsc, which is not supported"),
        ({"jetstream_domain": "hub"}, "sets jetstream_domain"),
        ({"tls_first": True}, "sets tls_first"),
        ({"creds": "op://vault/word"}, r"creds of context 'odd' is op://\.\.\.: only the path of a file"),
        ({"url": 7}, r"is none of the `nats` command: Expected `str`, got `int` - at `\$\.url`"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    variables: dict[str, str], fields: dict[str, Any], told: str
) -> None:
    _write(variables, "odd", **fields)
    with pytest.raises(ConfigurationError, match=told):
        settings_of_context("odd", variables)


@pytest.mark.parametrize("name", ["", "../odd", "a/b", "/etc/passwd"])
def test_a_name_leads_nowhere_else(variables: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name of a context"):
        settings_of_context(name, variables)


def test_a_name_that_there_is_not_is_told_with_those_that_there_are(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"no context 'prod': known in .* are none"):
        settings_of_context("prod", variables)
    _write(variables, "dev")
    with pytest.raises(ConfigurationError, match=r"no context 'prod': known in .* are dev "):
        settings_of_context("prod", variables)


def test_what_is_given_counts_before_what_the_environment_says(variables: dict[str, str]) -> None:
    _write(variables, "dev", url="nats://dev:1", user="app", password="word")
    at = {"url": "nats://dev:1", "user": "app", "password": "word"}
    elsewhere = variables | {"JOBLEDGER_URL": "nats://other:1", "JOBLEDGER_TOKEN": "t"}
    assert with_variables({"context": "dev"}, elsewhere) == at
    assert with_variables({"context": "dev", "user": "eve"}, elsewhere) == at | {"user": "eve"}
    chosen = variables | {"JOBLEDGER_CONTEXT": "dev", "JOBLEDGER_ENVIRONMENT": "e"}
    assert with_variables({}, chosen) == at | {"environment": "e"}
    assert with_variables({"url": "nats://b:1"}, chosen) == {"url": "nats://b:1", "environment": "e"}
    assert with_variables({}, chosen | {"JOBLEDGER_PASSWORD": "x"}) == at | {
        "environment": "e",
        "password": "x",
    }
    for settings, said in (
        ({"context": "dev", "url": "nats://b:1"}, variables),
        ({}, elsewhere | {"JOBLEDGER_CONTEXT": "dev"}),
    ):
        with pytest.raises(ConfigurationError, match="each names a server"):
            with_variables(settings, said)
