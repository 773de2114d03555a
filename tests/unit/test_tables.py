from __future__ import annotations

import pytest
from tests.support.tables import each_row

pytestmark = pytest.mark.anyio


def told_by(test: object) -> str:
    assert callable(test)
    with pytest.raises(pytest.fail.Exception) as caught:
        test()
    return str(caught.value)


def test_every_row_is_tried_and_each_that_fails_is_named_with_its_line() -> None:
    tried: list[int] = []

    @each_row("number, square", [(1, 1), (2, 5), (3, 9), (4, 17)])
    def squares(number: int, square: int) -> None:
        tried.append(number)
        assert number * number == square

    told = told_by(squares)
    assert tried == [1, 2, 3, 4]
    assert told.startswith("2 of 4 rows fail:")
    assert "\n2 | 5\n" in told
    assert "\n4 | 17\n" in told
    assert "assert number * number == square" in told
    assert "AssertionError: assert (2 * 2) == 5" in told
    assert "3 | 9" not in told


def test_an_error_is_told_with_the_line_that_raised_it() -> None:
    @each_row("text", ["1", "one"], ids=lambda text: f"the text {text}")
    def read(text: str) -> None:
        _number(text)

    told = told_by(read)
    assert told.startswith("1 of 2 rows fail:\n\nthe text one\n")
    assert "_number(text)" in told
    assert "return int(text)" in told
    assert "ValueError: invalid literal" in told


def _number(text: str) -> int:
    return int(text)


def test_an_error_that_does_not_come_is_a_failure() -> None:
    @each_row("text", ["one", "1"])
    def refuse(text: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            _number(text)

    assert "DID NOT RAISE" in told_by(refuse)


def test_beyond_twenty_only_the_names_are_told() -> None:
    @each_row("number", range(30))
    def never(number: int) -> None:
        assert number < 0

    told = told_by(never)
    assert told.count("assert number < 0") == 20
    assert told.endswith("\n29")


async def test_an_async_test_is_awaited_row_by_row() -> None:
    @each_row("number", [1, 2])
    async def one(number: int) -> None:
        assert number == 1

    with pytest.raises(pytest.fail.Exception, match=r"^1 of 2 rows fail:\n\n2\n"):
        await one()


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(AssertionError, match="the table of case has no rows"):
        each_row("case", [])


@each_row("number", [1, 2])
def test_other_parameters_are_fixtures(number: int, request: pytest.FixtureRequest) -> None:
    assert request.node.name == "test_other_parameters_are_fixtures"


@pytest.mark.parametrize("twice", [2, 4])
@each_row("number", [1, 2])
@each_row("other", [3])
def test_tables_can_be_stacked(number: int, other: int, twice: int) -> None:
    assert twice % 2 == 0
    assert number < other
