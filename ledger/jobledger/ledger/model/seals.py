"""Values of a job with an owner, which are stored sealed under the owner's key. Source: ADR 065.

A sealed value is a JSON string: `sealed:` and base64 of the value's JSON text, encrypted with the key. The event names
the key: `tenant:acme/1` is the first key of owner `tenant:acme`. Owner, environment and kind are authenticated, but
not the job: so code without the key can copy a value to another job of the owner (carried, reruns, items, schedules).

Keys are made and kept elsewhere; here is their use, and the check that no value of such a job is stored unsealed.
"""

from __future__ import annotations

import binascii
import functools
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar, cast, get_args

import msgspec

from jobledger.ledger.model.envelope import ErrorInfo, Event
from jobledger.ledger.model.errors import InvalidInputError, SealBrokenError
from jobledger.ledger.model.fingerprint import innermost_line
from jobledger.ledger.model.runs.orders import Callback

S = TypeVar("S", bound=msgspec.Struct)

#: What kind of thing is sealed: a JSON value, message and traceback of an error, or a word of a person or of the code.
Kind = Literal["value", "error", "text"]

#: The owner of jobs that name no owner, with `connect(seal="all")`.
OWNER_DEFAULT: Final = "ledger:default"
_OWNER: Final = re.compile(r"[a-z][a-z0-9_]{0,31}:[A-Za-z0-9_-]{1,64}", flags=re.ASCII)
_MARK: Final = "sealed:"
_BEGIN: Final = b'"sealed:'
#: Kinds of errors whose texts the ledger itself writes, without anything of a job's values.
OWN_ERRORS: Final = frozenset({"lost", "undeliverable", "unknown_task"})
#: What stands for a text that nobody gave.
OWN_TEXTS: Final = frozenset({"", "refused"})
#: Texts of people and of code, by the class that has them.
TEXTS: Final[Mapping[str, str]] = {
    "Noted": "text",
    "Progressed": "note",
    "CarriedProgress": "note",
    "SignalRefused": "reason",
    "CarriedSignal": "refused",
    "Progress": "note",
    "KeptSignal": "refused",
}


class ValueKey(Protocol):
    """One key of an owner."""

    @property
    def id(self) -> str:
        """`<owner>/<number>`."""
        ...

    def seal(self, kind: Kind, text: bytes) -> bytes:
        """Return the sealed form of a text."""
        ...

    def unseal(self, kind: Kind, blob: bytes) -> bytes:
        """Return the text. Raises: SealBrokenError."""
        ...

    def index(self, text: bytes) -> str:
        """Return a hash, 40 hex digits, that only a holder of the key can make: for values that must be compared."""
        ...


class KeyHolder(Protocol):
    """A holder of the keys of owners; `connect(sealing=...)` replaces the ledger's own."""

    async def key_for(self, owner: str) -> ValueKey:
        """Return the key for new values of an owner; make it if there is none.

        Raises: ConfigurationError if nothing can be sealed here, OwnerErasingError, KeyUnavailableError.
        """
        ...

    async def key(self, key_id: str) -> ValueKey:
        """Return the key that an event names. Raises: ErasedError, KeyUnavailableError."""
        ...


class KeepsKeys(KeyHolder, Protocol):
    """A holder that keeps keys in memory: with such a key a value is sealed or unsealed without a wait."""

    def kept(self, owner: str) -> ValueKey | None:
        """Return the newest key of an owner, if it is in memory and may still be used; this may not wait."""
        ...


def kept_keys(keys: KeyHolder | None) -> Callable[[str], ValueKey | None] | None:
    """Return `KeepsKeys.kept` of a holder that has it."""
    kept: Callable[[str], ValueKey | None] | None = getattr(keys, "kept", None)
    return kept if callable(kept) else None


def kept_key(keys: KeyHolder | None, key_id: str) -> ValueKey | None:
    """Return the key that an event names, if `keys` has it in memory."""
    kept = kept_keys(keys)
    found = None if kept is None else kept(key_id.rpartition("/")[0])
    return found if found is not None and found.id == key_id else None


def is_owner(text: str) -> bool:
    """Return whether a text has the form of an owner's name."""
    return _OWNER.fullmatch(text) is not None


def check_owner(owner: object) -> str:
    """Return the name of an owner. Raises: InvalidInputError."""
    if not isinstance(owner, str) or not is_owner(owner):
        raise InvalidInputError(
            f"owner must be kind:id, such as person:17, of letters, digits, _ and -, got {owner!r:.80}: the ledger keeps "
            "it when the data is erased, so give an id, never a name or an address"
        )
    return owner


def owner_of(key_id: str) -> str:
    """Return the owner of a key."""
    return key_id.rpartition("/")[0]


def number_of(key_id: str) -> int:
    """Return the number of a key among its owner's keys, from 1; 0 for a text that is no name of a key."""
    number = key_id.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


def is_sealed(value: bytes) -> bool:
    """Return whether a JSON text has the form of a sealed value."""
    return _blob(value) != b""


def _blob(value: object) -> bytes:
    """Return the bytes in a JSON text that has the form of a sealed value; b"" for any other thing."""
    if type(value) is msgspec.Raw:
        value = bytes(value)
    if type(value) is not bytes or not value.startswith(_BEGIN) or not value.endswith(b'"'):
        return b""
    try:
        return binascii.a2b_base64(value[len(_BEGIN) : -1], strict_mode=True)
    except binascii.Error:
        return b""


def seal_value(key: ValueKey, text: bytes, kind: Kind = "value") -> bytes:
    """Return JSON text as a sealed value."""
    return b'%s%s"' % (_BEGIN, binascii.b2a_base64(key.seal(kind, text), newline=False))


def unseal_value(key: ValueKey, value: bytes, kind: Kind = "value") -> bytes:
    """Return the JSON text of a sealed value. Raises: SealBrokenError."""
    blob = _blob(value)
    if not blob:
        raise SealBrokenError(
            f"a value under the key {key.id} is not sealed: somebody else than jobledger wrote it"
        )
    return key.unseal(kind, blob)


def seal_word(key: ValueKey, text: str) -> str:
    """Return a text as a sealed word; "" stays as it is."""
    return _sealed_word(key, text) if text else ""


def _sealed_word(key: ValueKey, text: str) -> str:
    return seal_value(key, text.encode("utf-8", "replace"), "text")[1:-1].decode()


def unseal_word(key: ValueKey, word: str) -> str:
    """Return the text of a sealed word. Raises: SealBrokenError."""
    return unseal_value(key, f'"{word}"'.encode(), "text").decode() if word else ""


def seal_words(key: ValueKey, words: Mapping[str, str]) -> dict[str, str]:
    """Return pairs of words with their second words sealed."""
    return {name: _sealed_word(key, word) for name, word in words.items()}


def unseal_words(key: ValueKey, words: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs with their second words unsealed. Raises: SealBrokenError."""
    return {name: unseal_word(key, word) for name, word in words.items()}


def seal_error(key: ValueKey, error: ErrorInfo) -> ErrorInfo:
    """Return an error whose message and traceback are sealed; its type and its place in the code stay."""
    if error.sealed or error.kind in OWN_ERRORS:
        return error
    text = msgspec.json.encode([error.message, error.traceback])
    sealed = seal_value(key, text, "error")[1:-1].decode()
    return ErrorInfo(
        kind=error.kind, type=error.type, message="", sealed=sealed, where=innermost_line(error.traceback)
    )


def unseal_error(key: ValueKey, error: ErrorInfo) -> ErrorInfo:
    """Return an error with its message and traceback. Raises: SealBrokenError."""
    if not error.sealed:
        return error
    text = unseal_value(key, f'"{error.sealed}"'.encode(), "error")
    message, traceback = msgspec.json.decode(text, type=tuple[str, str])
    return msgspec.structs.replace(error, message=message, traceback=traceback, sealed=msgspec.UNSET)


def require_sealed(event: Event) -> None:
    """Refuse to store an unsealed value of a job that has an owner, whichever way it came.

    Raises: InvalidInputError.
    """
    values = _getter(type(event))(event)
    if not any(values) or (_blob(values[0]) and not any(values[1:])):
        return  # nearly always: a sealed input or result, and nothing beside it
    if found := clear_field(event):
        tag = str(type(event).__struct_config__.tag)
        raise InvalidInputError(
            f"{found} of the event {tag} of job {event.job} is not sealed, and the job has the owner "
            f"{owner_of(event.key)}: nothing was stored"
        )


def clear_field(value: msgspec.Struct) -> str:
    """Return the name of a field, however deep, whose value is not sealed; "" if all are sealed."""
    found = _getter(type(value))(value)
    if not any(found):
        return ""
    for (name, is_text), field in zip(_fields(type(value)), found, strict=True):
        if field and (clear := _clear(name, field, is_text=is_text)):
            return clear
    return ""


def _clear(name: str, value: Any, *, is_text: bool) -> str:
    match value:
        case msgspec.Raw():
            return "" if is_covered(bytes(value)) else name
        case str():
            return name if is_text and value not in OWN_TEXTS and not _is_word(value) else ""
        case ErrorInfo():
            is_open = value.message or value.traceback
            return f"{name}.message" if is_open and value.kind not in OWN_ERRORS else ""
        case Callback():
            return ""  # words of the code, not data
        case msgspec.Struct():
            return clear_field(value)
        case tuple():
            members = cast("Collection[Any]", value)
            return next((found for each in members if (found := _clear(name, each, is_text=False))), "")
        case dict():
            words = cast("dict[str, Any]", value).values()
            return "" if all(_is_word(str(each)) for each in words) else name
        case _:
            return ""


def unseal_struct(key: ValueKey, value: S, *, values: bool = False) -> S:
    """Return an event or a job, or a part of one, with the texts, errors and metadata that are sealed in it, at any depth.

    `values`: small values, too; large ones are references. What is not sealed stays. Raises: SealBrokenError.
    """
    changed: dict[str, Any] = {}
    for name, is_text in _fields(type(value)):
        before = getattr(value, name)
        after = _unsealed(key, before, is_text=is_text, values=values)
        if after is not before:
            changed[name] = after
    return msgspec.structs.replace(value, **changed) if changed else value


def _unsealed(key: ValueKey, value: Any, *, is_text: bool, values: bool) -> Any:
    match value:
        case msgspec.Raw():
            return unseal_raw(key, value) if values else value
        case str():
            return unseal_word(key, value) if is_text and _is_word(value) else value
        case ErrorInfo():
            return unseal_error(key, value)
        case msgspec.Struct():
            return unseal_struct(key, value, values=values)
        case tuple():
            members = cast("Collection[Any]", value)
            found = tuple(_unsealed(key, each, is_text=False, values=values) for each in members)
            return found if any(a is not b for a, b in zip(found, members, strict=True)) else members
        case Mapping():
            parts = cast("Mapping[str, Any]", value)
            return {
                name: _unsealed(key, part, is_text=isinstance(part, str), values=values)
                for name, part in parts.items()
            }
        case _:
            return value


def unseal_raw(key: ValueKey, value: msgspec.Raw) -> msgspec.Raw:
    """Return a small value of an event, or an array of sealed ones, as it was given. Raises: SealBrokenError."""
    text = bytes(value)
    if is_sealed(text):
        return msgspec.Raw(unseal_value(key, text))
    if not text or not text.startswith(b"[") or not is_covered(text):
        return value
    items = msgspec.json.decode(text, type=list[msgspec.Raw])
    return msgspec.Raw(b"[%s]" % b",".join(unseal_value(key, bytes(each)) for each in items))


def _is_word(text: str) -> bool:
    return is_sealed(f'"{text}"'.encode())


def is_covered(value: bytes) -> bool:
    """Return whether a value is absent, sealed, or an array of sealed ones, as the inputs of a group are."""
    if not value or is_sealed(value):
        return True
    if not value.startswith(b"["):
        return False
    try:
        items = msgspec.json.decode(value, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        return False
    return all(is_sealed(bytes(each)) for each in items)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class in which a value may be, and whether it is a text."""
    text = TEXTS.get(kind.__name__)
    return tuple(
        (each.name, each.name == text)
        for each in msgspec.structs.fields(kind)
        if each.name == text or _may_hold_value(each.type)
    )


@functools.cache
def _getter(kind: type[msgspec.Struct]) -> Callable[[msgspec.Struct], tuple[Any, ...]]:
    """Return the function that reads the values of these fields, which is faster than one look for each."""
    names = [name for name, _ in _fields(kind)]
    if not names:
        return lambda _value: ()
    get = operator.attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _may_hold_value(kind: object) -> bool:
    if kind is msgspec.Raw or kind == dict[str, str]:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind is ErrorInfo or bool(_fields(kind))
    return any(map(_may_hold_value, cast("Collection[object]", get_args(kind))))
