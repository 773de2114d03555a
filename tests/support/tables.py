"""A table of cases as one test, which tries every row and names each that fails.

For rows that take milliseconds and share what they ask for. Rows that take seconds, or need a fixture of their own,
are `pytest.mark.parametrize`'s, which makes a test of each.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

Test = Callable[..., Any]
_Rows = list[dict[str, Any]]
_Named = Callable[[Any], object]
#: How many failed rows are shown in full; of the others the name is enough.
_SHOWN_MAX: Final = 20
_NAME_CHARACTERS_MAX: Final = 100


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: _Named | None = None,
) -> Callable[[Test], Test]:
    """Call the test with each row, as one test, to the last row also when some fail.

    `names` and `rows` are those of `pytest.mark.parametrize`: of several names, comma-separated or in a sequence, each
    row is a sequence as long. `ids` makes the name of a value, which a failure tells; without it the value is shown.
    A table without rows is refused: it would prove nothing.
    """
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(words, row if len(words) > 1 else (row,), strict=True)) for row in rows]
    assert table, f"the table of {', '.join(words)} has no rows"

    def decorate(test: Test) -> Test:
        made = _awaiting if inspect.iscoroutinefunction(test) else _calling
        every_row = made(test, table, ids or repr)
        asked = inspect.signature(test)
        left = [parameter for name, parameter in asked.parameters.items() if name not in words]
        # The fixtures that pytest is to give.
        setattr(every_row, "__signature__", asked.replace(parameters=left))  # noqa: B010 - unknown to the type checkers
        return every_row

    return decorate


def _calling(test: Test, table: _Rows, named: _Named) -> Test:
    @functools.wraps(test)
    def every_row(**fixtures: Any) -> None:
        failures = _Failures(len(table), named)
        for row in table:
            with failures.of(row):
                test(**row, **fixtures)
        failures.tell()

    return every_row


def _awaiting(test: Test, table: _Rows, named: _Named) -> Test:
    @functools.wraps(test)
    async def every_row(**fixtures: Any) -> None:
        failures = _Failures(len(table), named)
        for row in table:
            with failures.of(row):
                await test(**row, **fixtures)
        failures.tell()

    return every_row


class _Failures:
    """The rows that failed, with where and why."""

    def __init__(self, rows: int, named: _Named) -> None:
        self._rows = rows
        self._named = named
        self._failed: list[tuple[str, str]] = []

    @contextmanager
    def of(self, row: dict[str, Any]) -> Generator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told at the end
            name = " | ".join(str(self._named(value)) for value in row.values())
            self._failed.append((_short(name), _why(error)))

    def tell(self) -> None:
        """Fail with all of them, if there are any."""
        if not self._failed:
            return
        told = [f"\n{name}\n{_indented(why)}" for name, why in self._failed[:_SHOWN_MAX]]
        told += [name for name, _ in self._failed[_SHOWN_MAX:]]
        pytest.fail(f"{len(self._failed)} of {self._rows} rows fail:\n" + "\n".join(told), pytrace=False)


def _why(error: BaseException) -> str:
    """Return the error, with the line of the test and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    seen = [f"{at.filename}:{at.lineno}: {at.line}" for at in frames if not _is_machinery(at.filename)]
    places = dict.fromkeys((*seen[:1], *seen[-1:]))
    return "\n".join([*places, *traceback.format_exception_only(error)])


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or "/_pytest/" in filename


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else f"{name[:_NAME_CHARACTERS_MAX]}…"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
