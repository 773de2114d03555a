"""Declarations of verbs: one frozen Struct for each thing that a person can do or ask.

Its fields are the options of the command, the body or query of the request, and the fields of the form. `do` does it,
and its return type is the answer of every door. `say` has the sentences for a terminal. The rest of the declaration,
such as the permission, holds for every door, so that no door can forget it. The doors are made elsewhere: the commands
in `jobledger.cli.verbs`, the endpoints in `jobledger.gateway.api.verbs`, the forms in `jobledger.gateway.pages.table`;
`Ledger.do` and the clients of the gateway take a verb as it is. Source: ADR 052.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote

import msgspec

from jobledger.admin.events.changes import Change
from jobledger.admin.find import find_job
from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import check_text
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS, Permission
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.model.written_times import read_span, read_time

T = TypeVar("T")
V = TypeVar("V", bound="type[Verb[Any]]")
Method = Literal["GET", "POST", "PUT", "DELETE"]
NONE: Final = "none"  #: how a person writes null, and an empty list
_TIMES: Final = "a time such as 2025-01-31T08:00:00Z, 10:30 or 2h"
_SPANS: Final = "a number of seconds nor a time span such as 90s, 30m, 1h30m, 7d or 2w"
_REASON_MAX: Final = 2_000
_WORDS: Final = re.compile(r"\{(\w+)\}")


def option(
    text: str,
    metavar: str = "",
    *,
    flag: str = "",
    file: str = "",
    is_argument: bool = False,
    in_query: bool = False,
    is_body: bool = False,
    past: bool = False,
    **bounds: Any,
) -> msgspec.Meta:
    """Describe a field of a verb.

    `text`: one sentence, for `--help`, the API's document and the reference. `metavar`: the word for its value on the
    command line. `flag`: the option, if it is not the field's name. `file`: an option that names a file with the value,
    `-` for stdin; structures and bytes have only this one. `is_argument`: it has no option, like the words of the
    address. `in_query`: a parameter of the address even if the request has a body. `is_body`: all of the body of the
    request, not a member of it. `past`: a time in the past, so that `2h` means two hours ago. `bounds`: of
    `msgspec.Meta`, such as `ge` and `max_length`.
    """
    own = {
        "metavar": metavar,
        "flag": flag,
        "file": file,
        "is_argument": is_argument,
        "in_query": in_query,
        "is_body": is_body,
        "past": past,
    }
    return msgspec.Meta(description=text, extra=own, **bounds)


_REASON: Final = "Why; kept in the ledger with who acted."
Reason = Annotated[str, option(_REASON, "TEXT", max_length=_REASON_MAX)]
#: For a verb whose body is one whole value.
ReasonBeside = Annotated[str, option(_REASON, "TEXT", max_length=_REASON_MAX, in_query=True)]
Plan = Annotated[bool, option("Show what would happen, and change nothing.", in_query=True)]


class Place:
    """Where a verb is done, and who does it. A gateway has one of its own, which knows what the request said."""

    def __init__(self, ledger: Ledger, rows: Rows | None, principal: Principal, trace: str = "") -> None:
        """`rows`: None if no file of a projection was named. `trace`: W3C traceparent of the caller."""
        self.ledger = ledger
        self.principal = principal
        self.trace = trace
        self._rows = rows

    @property
    def rows(self) -> Rows:
        """The projection. Raises: InvalidInputError if nobody named its file."""
        if self._rows is None:
            raise InvalidInputError(
                "this reads a projection: name its file, as in do(..., projection=Path('jobs.db'))"
            )
        return self._rows

    def require_secrets(self, references: Iterable[str]) -> None:
        """Refuse references to secrets that the principal may not name; on the ledger itself it may name all."""

    @property
    def by(self) -> str:
        """The name under which events record the caller."""
        return self.principal.name

    async def act_on_job(
        self,
        job_id: str,
        queue: str | None,
        permission: Permission,
        act: Callable[[Ledger, JobRef], Awaitable[Job]],
    ) -> Job:
        """Find a job by its id or a prefix of it, act on it, and return it as it is then.

        Raises: as `find_job`, what `act` raises.
        """
        del permission  # a caller on the ledger itself has all permissions
        if self._rows is None:
            found = await self.ledger.job(job_id, queue=queue)
        else:
            found = await find_job(self._rows, job_id, queue)
        return await act(self.ledger, found.ref)


def operator_principal(name: str = "") -> Principal:
    """Return the principal of a program that speaks to the ledger itself: only the server's rights limit it."""
    return Principal(name=name, permissions=frozenset(PERMISSIONS))


class Declaration(NamedTuple):
    """The declaration of a verb, beside its fields."""

    verb: type[Verb[Any]]
    command: str  #: group and name on the command line, as `queues pause`
    method: Method
    path: str  #: `/v1/queues/{queue}/pause`; each word in braces is a field
    permission: Permission
    summary: str
    #: What the permission must hold for: everything; "queue": the field `queue`; "own": what `do` finds, which asks
    #: `Place.principal` itself and answers as if what it may not see were not there.
    about: Literal["everything", "queue", "own"] = "everything"
    problems: tuple[str, ...] = ()  #: further codes, beside those that every endpoint may answer with
    status: int = 200
    form: str = ""  #: address of the form; "": no page has one
    then: str = ""  #: page to show after the form; words in braces are fields of the verb or of the answer
    asks_why: bool = True  #: a person who sends the form has to say why
    heeds: tuple[Literal["If-Match"], ...] = ()  #: headers of the request that `Place` heeds
    also: tuple[int, ...] = ()  #: other statuses of success; `Verb.status_of` says when
    has_own_command: bool = (
        False  #: the command is written by hand: it takes many values, say, or waits for an answer
    )
    location: str = ""  #: header of the answer: address of what was made, written as `then`
    reads_rows: bool = False  #: needs the projection, whose file a command can name
    is_list: bool = False  #: the answer has `items`, which `--json` writes a line each
    creates: bool = False  #: the command makes a missing ledger

    def require(self, verb: Verb[Any], principal: Principal) -> None:
        """Refuse a principal that lacks the permission. Raises: AccessDeniedError."""
        match self.about:
            case "everything":
                principal.require_everywhere(self.permission)
            case "queue":
                principal.require(self.permission, cast("Any", verb).queue)
            case "own":
                principal.require(self.permission)

    def filled(self, pattern: str, wish: Verb[Any], found: Any) -> str:
        """Return an address whose words in braces are fields of the verb or of its answer."""
        values = {
            each: quote(str(getattr(wish if hasattr(wish, each) else found, each)), safe="")
            for each in words_in(pattern)
        }
        return pattern.format_map(values)

    @property
    def group(self) -> str:
        """The first word of the command."""
        return self.command.partition(" ")[0]

    @property
    def name(self) -> str:
        """The last word of the command."""
        return self.command.rpartition(" ")[2]


class Note(str):
    """A sentence for a person beside the answer: a terminal shows it on stderr."""

    __slots__ = ()


class Heading(str):
    """A line above other lines."""

    __slots__ = ()


class Table(NamedTuple):
    """Rows that a terminal shows below the names of their columns; a time of the past is shown as its age."""

    columns: Sequence[str]  #: a name that ends with `>` is set right, one that ends with `!` is never cut
    rows: Sequence[Sequence[str | int | datetime | None]]
    title: str = ""


class Facts(NamedTuple):
    """Facts about one thing, each on a line: the terminal leaves out those that are None, and shows a time with its age."""

    facts: Sequence[tuple[str, str | datetime | None]]


#: What a terminal is told: a sentence, or something that it lays out.
Told = str | Table | Facts


def shortened(text: str, length_max: int) -> str:
    """Return a text that fits a terminal's line, with an ellipsis if it was cut."""
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def told_changes(history: Sequence[Change]) -> Iterator[str]:
    """Yield the history of something that people set, a line for each change; the newest comes first."""
    yield ""
    yield Heading("history")
    for each in history:
        words = f"{each.event} {each.words}".rstrip()
        yield f"{each.stream_sequence:>6} {shown_time(each.at)} {words}, by {each.by}"


class Verb(msgspec.Struct, Generic[T], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a person can do or ask; a value of it is one such wish."""

    declaration: ClassVar[Declaration]

    async def do(self, place: Place) -> T:
        """Do it for any caller, and return the answer of every door. Raises: what it says itself."""
        raise NotImplementedError

    def say(self, found: T) -> Iterator[Told]:
        """Yield what a person at a terminal is told; a sentence may be a `Note` or a `Heading`."""
        raise NotImplementedError

    def status_of(self, found: T) -> int | None:
        """Return the HTTP status of an answer, None for the declared one."""
        del found
        return None

    def version_of(self, found: T) -> int | None:
        """Return the sequence for the `ETag` of an answer; None: it gets none."""
        del found
        return None

    def page_after(self, found: T) -> str:
        """Return the address of the page to show after the form."""
        return self.declaration.filled(self.declaration.then, self, found)

    async def notes(self, place: Place) -> Sequence[str]:
        """Return sentences that a terminal shows beside the answer; no other door looks them up."""
        del place
        return ()

    async def perform(self, place: Place) -> T:
        """Check the principal's permission, and do it. Raises: AccessDeniedError, and as `do`."""
        self.declaration.require(self, place.principal)
        return await self.do(place)

    async def perform_on(self, ledger: Ledger, *, by: str = "", projection: Path | None = None) -> T:
        """Do it for a program that speaks to the ledger itself; `Ledger.do` calls this. Raises: as `do`."""
        rows = None if projection is None else Rows(ledger, projection)
        return await self.perform(Place(ledger, rows, operator_principal(by)))


def verb(
    command: str, request: str, *, permission: Permission, summary: str, **more: Any
) -> Callable[[V], V]:
    """Declare a verb: its command, as `queues pause`, and its request, as `POST /v1/queues/{queue}/pause`.

    `more`: the other fields of `Declaration`.
    """
    method, _, path = request.partition(" ")

    def declare(kind: V) -> V:
        kind.declaration = Declaration(
            kind, command, cast("Method", method), path, permission, summary, **more
        )
        return kind

    return declare


def words_in(pattern: str) -> list[str]:
    """Return the words in braces of an address."""
    return _WORDS.findall(pattern)


def declared_in(module: ModuleType) -> list[Declaration]:
    """Return the verbs that a module declares, in its order."""
    return [
        each.declaration
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Verb)
        and each.__module__ == module.__name__
        and "declaration" in each.__dict__  # a base class of several verbs is no verb itself
    ]


class Request(NamedTuple):
    """A verb as a request to a gateway."""

    method: Method
    path: str
    params: dict[str, str]
    body: Any


def request_of(wish: Verb[Any]) -> Request:
    """Return the request that does the same at a gateway; fields at their defaults are left out."""
    declaration, words = wish.declaration, words_in(wish.declaration.path)
    path = declaration.path.format_map({each: quote(str(getattr(wish, each)), safe="") for each in words})
    params: dict[str, str] = {}
    body: Any = {}
    for field in fields_of(type(wish)):
        value = getattr(wish, field.name)
        if field.name in words or value is msgspec.UNSET or value == field.default:
            continue
        if field.is_parameter(declaration):
            params[field.wire] = msgspec.json.encode(value).decode().strip('"')
        elif field.is_body:
            body = msgspec.to_builtins(value)
        else:
            body[field.wire] = msgspec.to_builtins(value)
    has_body = declaration.method in {"POST", "PUT"}
    return Request(declaration.method, path, params, body if has_body else None)


def answer_type(kind: type[Verb[Any]]) -> Any:
    """Return the type of what a verb answers."""
    return get_type_hints(kind.do)["return"]


class Field(NamedTuple):
    """A field of a verb, as doors need it."""

    name: str  #: in Python
    wire: str  #: its name in JSON and in addresses
    kind: Any  #: its type without `None`, `Unset` and what describes it
    declared: Any  #: its type as it stands in the verb
    is_nullable: bool  #: None is a value of its own, beside not being given
    default: Any  #: `msgspec.NODEFAULT` if it must be given
    meta: msgspec.Meta

    @property
    def help(self) -> str:
        """What it means, in one sentence."""
        return self.meta.description or ""

    @property
    def metavar(self) -> str:
        """The word for its value on the command line."""
        return cast("str", (self.meta.extra or {}).get("metavar", ""))

    @property
    def flag(self) -> str:
        """The option; the unit of a span of time is not part of it, since it takes others too."""
        given = (self.meta.extra or {}).get("flag")
        return cast("str", given) or "--" + self.wire.removesuffix("_s").replace("_", "-")

    @property
    def file(self) -> str:
        """The option that names a file with its value, "" if there is none."""
        return cast("str", (self.meta.extra or {}).get("file", ""))

    @property
    def has_words(self) -> bool:
        """Whether a person may write it on a command line, and not only into a file."""
        is_structure = isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct)
        return self.kind is not bytes and not is_structure

    @property
    def flags(self) -> tuple[str, ...]:
        """The options that give it."""
        return (*((self.flag,) if self.has_words else ()), *((self.file,) if self.file else ()))

    @property
    def is_body(self) -> bool:
        """Whether it is all of the body of the request."""
        return bool((self.meta.extra or {}).get("is_body"))

    @property
    def is_past(self) -> bool:
        """Whether it is a time that was."""
        return bool((self.meta.extra or {}).get("past"))

    def is_parameter(self, declaration: Declaration) -> bool:
        """Return whether it is a parameter of the address, and not part of the body."""
        is_bodiless = declaration.method in {"GET", "DELETE"}
        return is_bodiless or bool((self.meta.extra or {}).get("in_query"))

    def is_argument_of(self, declaration: Declaration) -> bool:
        """Return whether a command takes it without an option, like the required words of the address."""
        is_word = self.name in words_in(declaration.path) and self.default is msgspec.NODEFAULT
        return is_word or bool((self.meta.extra or {}).get("is_argument"))

    @property
    def is_span(self) -> bool:
        """Whether it is a span of time, in seconds."""
        return self.wire.endswith("_s")

    @property
    def is_many(self) -> bool:
        """Whether it has any number of values."""
        return get_origin(self.kind) is tuple

    @property
    def is_pairs(self) -> bool:
        """Whether it has any number of names with a text each."""
        return bool(self.kind == dict[str, str])

    @property
    def is_json(self) -> bool:
        """Whether a person writes it as JSON."""
        return self.kind is Any or (get_origin(self.kind) is dict and not self.is_pairs)


@functools.cache
def fields_of(kind: type[Verb[Any]]) -> tuple[Field, ...]:
    """Return the fields of a verb, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_field(each, hints[each.name]) for each in msgspec.structs.fields(kind))


def _field(info: msgspec.structs.FieldInfo, declared: Any) -> Field:
    metas: list[Any] = []
    kind = declared
    while get_origin(kind) is Annotated:
        kind, *found = get_args(kind)
        metas += found
    kinds = list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]
    is_nullable = type(None) in kinds and msgspec.UnsetType in kinds
    (own,) = (each for each in kinds if each not in (type(None), msgspec.UnsetType))
    while get_origin(own) is Annotated:
        own, *found = get_args(own)
        metas += found
    meta = next(
        (each for each in metas if isinstance(each, msgspec.Meta) and each.description), msgspec.Meta()
    )
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return Field(info.name, info.encode_name, own, declared, is_nullable, default, meta)


def read_words(field: Field, words: Sequence[str], shown: str, now: datetime) -> Any:
    """Return a field's value out of what a person wrote, on a command line or in a form.

    A time may be a span from now, or back from now if the field is of the past; a span may have a unit, and `none` is
    null or an empty list. `shown`: the name by which the person knows the field.

    Raises: InvalidInputError with one sentence.
    """
    if field.is_many:
        one = field._replace(kind=get_args(field.kind)[0])
        given = () if list(words) == [NONE] else words
        found: Any = tuple(sorted({_read_one(one, each, shown, now) for each in given}))
    else:
        found = _read_one(field, words[-1], shown, now)
    try:
        return msgspec.convert(found, field.declared, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{shown} {words[-1][:60]!r}: {_said(error, field)}") from error


def _read_one(field: Field, text: str, shown: str, now: datetime) -> Any:
    if field.is_nullable and text == NONE:
        return None
    try:
        if field.kind is datetime:
            at = read_time(text, now, ahead=not field.is_past)
            if at is None:
                raise InvalidInputError(f"{shown} {text[:60]!r} is not {_TIMES}")
            return at
        if field.is_span and (span := read_span(text)) is not None:
            return span.total_seconds()
    except OverflowError as error:
        raise InvalidInputError(f"{shown} {text[:60]!r} is longer than anything was kept") from error
    kinds = {int: "a whole number", float: "a number"}
    if field.kind in kinds:
        try:
            return field.kind(text)
        except ValueError as error:
            what = f"neither {_SPANS}" if field.is_span else f"not {kinds[field.kind]}"
            also = " and not none" if field.is_nullable else ""
            raise InvalidInputError(f"{shown} {text[:60]!r} is {what}{also}") from error
    if field.is_json:
        return msgspec.json.decode(
            check_text(text.encode("utf-8", "surrogateescape"), what=f"JSON of {shown}")
        )
    if get_origin(field.kind) is Literal and text not in get_args(field.kind):
        *most, last = get_args(field.kind)
        raise InvalidInputError(f"{shown} must be {', '.join(most)} or {last}, got {text[:60]!r}")
    return text


def _said(error: msgspec.ValidationError, field: Field) -> str:
    meta = field.meta
    if meta.max_length is not None and not field.is_many:
        return f"give at most {meta.max_length:,} characters"
    bounds = (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le), ("less than", meta.lt))
    told = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    return f"give {told}" if told else str(error)
