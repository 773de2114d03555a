"""Secrets behind references: found, sealed and unsealed, and in no sentence when they are not."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError
from jobledger.ledger.model.hooks.errors import SecretUnavailableError
from jobledger.ledger.model.hooks.references import check_reference, is_reference, reference_words
from jobledger.ledger.webhooks.secrets import Secrets, key_of, make_key_file, new_secret


def test_a_secret_is_read_anew_from_where_its_reference_says(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    place.write_text("from a file\n")
    secrets = Secrets({"A": "from a variable"})
    assert secrets.read("env:A") == b"from a variable"
    assert secrets.read(f"file:{place}") == b"from a file"
    place.write_text("another")
    assert secrets.read(f"file:{place}") == b"another"
    place.write_text("\n")
    for missing in ("env:B", f"file:{tmp_path}/none", f"file:{tmp_path}", f"file:{place}"):
        with pytest.raises(SecretUnavailableError):
            secrets.read(missing)


def test_a_sealed_secret_opens_with_its_key_file_alone(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    make_key_file(ours)
    make_key_file(others)
    assert ours.stat().st_mode & 0o777 == 0o600
    sealed = Secrets({}, ours).seal(b"hidden text")
    assert (is_reference(sealed), reference_words(sealed)) == (True, "sealed")
    assert b"hidden" not in base64.urlsafe_b64decode(sealed.partition(":")[2])
    assert Secrets({}, ours).read(sealed) == b"hidden text"
    not_a_key = tmp_path / "text"
    not_a_key.write_text("no key")
    for file in (others, not_a_key, tmp_path / "none", None):
        with pytest.raises(SecretUnavailableError) as refused:
            Secrets({}, file).read(sealed)
        assert sealed not in str(refused.value)
    with pytest.raises(ConfigurationError, match="exists"):
        make_key_file(ours)


@each_row(
    "value",
    ["", "hunter2", "env:", "env:A B", "file:relative", "file:/a\nb", "sealed:x", "whsec_abc", "ENV:A"],
)
def test_what_is_no_reference_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_reference("the secret", value)
    assert value in {"", "env:"} or value not in str(refused.value)


def test_a_new_secret_is_32_random_bytes_and_stands_for_them() -> None:
    secret = new_secret()
    assert (secret[:6], len(key_of(secret.encode()))) == ("whsec_", 32)
    assert new_secret() != secret
    assert key_of(b"plain") == b"plain"
    with pytest.raises(SecretUnavailableError):
        key_of(b"whsec_?")
