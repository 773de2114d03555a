"""The owner that a template makes of an input: the short way gives what the long one gives."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from jobledger.ledger import InvalidInputError, task
from jobledger.ledger.limits.keys import InputArguments, KeySource
from jobledger.ledger.model.events import Order
from jobledger.ledger.owner_names import owner_named
from jobledger.ledger.templates import filled, owner_of_arguments


class _Word(str, enum.Enum):  # noqa: UP042 - the class that users wrote before 3.11
    ACME = "acme"


@task(owner="person:{who}")
async def letter(who: Any, region: str = "eu") -> None:
    """Write to somebody."""


@task(owner="person:{region}-{who}", name="letter_from")
async def letter_from(who: Any, region: str = "eu") -> None:
    """Write to somebody from somewhere."""


_TASKS = {"person:{who}": letter, "person:{region}-{who}": letter_from}


def _outcome(call: Callable[[], str]) -> str:
    try:
        return call()
    except InvalidInputError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("template", _TASKS)
@pytest.mark.parametrize(
    "who",
    [
        17,
        0,
        -3,
        "ann",
        "a_b-C",
        _Word.ACME,
        "",
        " ",
        "a b",
        "ann@example.org",
        "x" * 64,
        "x" * 65,
        True,
        None,
        1.5,
        [1],
        "é",
    ],
)
def test_the_short_way_to_an_owner_gives_what_the_long_one_gives(template: str, who: object) -> None:
    plain, options = _TASKS[template].unpacked
    text = plain.signature.encode((), {"who": who})
    arguments = InputArguments(plain.signature.decode, text)
    source = KeySource(plain.name, options.queue, Order(), arguments)
    long = _outcome(lambda: filled("owner", template, source))
    assert _outcome(lambda: owner_named(plain, options, text)) == long
    assert owner_of_arguments(template, arguments) in ("", long)


def test_a_default_names_the_owner_too() -> None:
    plain, options = letter_from.unpacked
    assert owner_named(plain, options, b'{"who":17}') == "person:eu-17"


def test_metadata_names_the_owner_whatever_an_input_of_unknown_form_holds() -> None:
    template, given = "person:{metadata.uid}", {"metadata.uid": "mallory"}
    source = KeySource("letter", "default", Order(metadata={"uid": "ann"}), lambda: given)
    assert filled("owner", template, source) == "person:ann"
    assert owner_of_arguments(template, lambda: given) == ""
