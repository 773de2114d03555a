"""The declaration of a page: its address, its permission, the function for its facts, and the template."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, cast, get_type_hints

import msgspec

from jobledger.admin.past import AsOf
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.pages.memo import Memo
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission

_DIGITS_MAX: Final = 15
_REASON_MAX: Final = 2_000  #: characters of a reason, as over HTTP

#: The time before the moment shown that charts and rates cover.
Range = Literal["15m", "1h", "6h", "24h", "7d"]
RANGE: Final[Range] = "1h"


class When(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a page shows: a moment (the present if none is given), and a range before it."""

    #: Moment by the clock of the server, ISO-8601; UTC if it has no zone, as in a browser's field.
    at: str = ""
    sequence: int | None = None  #: stream sequence of the last event before the moment
    range: Range = RANGE

    def named(self) -> tuple[tuple[str, str], ...]:
        """Return the time as the parameters that every link of the page repeats."""
        found = [("at", self.at), ("sequence", "" if self.sequence is None else str(self.sequence))]
        found.append(("range", "" if self.range == RANGE else self.range))
        return tuple(each for each in found if each[1])

    def as_of(self) -> AsOf | None:
        """Return the moment, None for the present. Raises: ProblemError."""
        if self.at and self.sequence is not None:
            raise ProblemError("BAD_REQUEST", "at and sequence both name a moment: give one of them")
        if self.at:
            return AsOf(at=moment_of("at", self.at))
        return None if self.sequence is None else AsOf(stream_sequence=self.sequence)


def moment_of(name: str, text: str) -> datetime:
    """Return a moment that somebody typed, in UTC. Raises: ProblemError."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        sentence = f"{name} is {text[:60]!r}: write a moment as 2026-01-31T08:00:00Z"
        raise ProblemError("BAD_REQUEST", sentence) from error


class Viewer(NamedTuple):
    """The viewer of a page. Viewers with the same rights share pages, so no page is made from a name."""

    gateway: Gateway
    principal: Principal
    path: str  #: path of the address, without the parameters behind the `?`
    kept: Memo
    when: When = When()  #: time in the address, also for a page that has no past
    asked: tuple[tuple[str, str], ...] = ()  #: other parameters of the address, without the place in a list


class Elsewhere(NamedTuple):
    """A redirect to the address of the thing that was asked for."""

    address: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page."""

    path: str
    template: str
    #: async (looked, path words..., query=) -> a Struct of the page's facts, among them `shell`; or an `OwnPage` with
    #: such facts, or `Elsewhere`
    facts: Callable[..., Awaitable[Any]]
    permission: Permission | None = "view"
    #: async (looked, path words...) -> a number that changes with the job of the page, so that the page is never
    #: older than the job's newest event. None: the page shows lists, which lag anyhow.
    stands_at: Callable[..., Awaitable[int]] | None = None

    @property
    def query(self) -> type[msgspec.Struct]:
        """The type of the parameters behind the `?`, as `facts` takes them; other parameters are ignored."""
        return _query_of(self.facts)


@functools.cache
def _query_of(facts: Callable[..., Any]) -> type[msgspec.Struct]:
    return cast("type[msgspec.Struct]", get_type_hints(facts)["query"])


class Fields:
    """The fields that a form sent: each name with its values."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self._values = values

    def one(self, name: str) -> str:
        """Return a field's text without spaces around it, "" without it."""
        return self._values.get(name, [""])[0].strip()

    def text(self, name: str) -> str:
        """Return a field's text as it was written."""
        return self._values.get(name, [""])[0].replace("\r\n", "\n")

    def reason(self) -> str:
        """Return the reason of an act. Raises: ProblemError if it is missing or too long."""
        text = self.one("reason")
        if not text:
            raise ProblemError("BAD_REQUEST", "give a reason: it is kept in the ledger with your name")
        if len(text) > _REASON_MAX:
            raise ProblemError(
                "BAD_REQUEST", f"the reason has {len(text):,} characters: give at most {_REASON_MAX:,}"
            )
        return text

    def moment(self, name: str) -> datetime | None:
        """Return a moment in UTC, None where the field is empty. Raises: ProblemError."""
        text = self.one(name)
        return moment_of(name, text) if text else None

    def whole(self, name: str) -> int | None:
        """Return a whole number that is not negative, None where the field is empty. Raises: ProblemError."""
        text = self.one(name)
        if text and not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
            raise ProblemError("BAD_REQUEST", f"{name} must be a whole number, got {text[:40]!r}")
        return int(text) if text else None

    def number(self, name: str) -> float | None:
        """Return a number, None where the field is empty. Raises: ProblemError."""
        text = self.one(name)
        try:
            value = float(text) if text else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            raise ProblemError("BAD_REQUEST", f"{name} must be a number, got {text[:40]!r}")
        return value

    def many(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._values.get(name, [])

    def pairs(self) -> list[tuple[str, str]]:
        """Return every field with each of its values."""
        return [(name, value) for name, values in self._values.items() for value in values]

    def __contains__(self, name: str) -> bool:
        return name in self._values


class SentForm(NamedTuple):
    """A form that somebody sent."""

    gateway: Gateway
    principal: Principal
    fields: Fields
    looked: Viewer


class OwnPage(NamedTuple):
    """A page with a template of its own: the answer of a form, or a page in place of the requested one."""

    template: str
    facts: Any  #: facts as those of a page


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The act of a form; it answers with an address to go to, or with a page of its own."""

    path: str
    permission: Permission | None
    act: Callable[..., Awaitable[str | OwnPage]]  #: async (sent, path words...) -> the answer
