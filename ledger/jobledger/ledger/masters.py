"""Master keys, which wrap the keys of owners and never reach the server: from a file, a variable or a program.

A file or a variable holds one key a line, `name base64` of 32 bytes: the first one wraps, each one unwraps.
A program, such as a client of a KMS, is asked by lines of JSON and answers with one line each:
`{"do": "wrap", "secret": B, "about": B}` gives `{"master": NAME, "wrapped": B}`, and `{"do": "unwrap", "master": NAME,
"wrapped": B, "about": B}` gives `{"secret": B}`; B is base64. What it cannot do it answers with `{"error": "why"}`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from jobledger.ledger.model.errors import ConfigurationError, InvalidTokenError, KeyUnavailableError
from jobledger.ledger.model.subjects import check_token

if TYPE_CHECKING:
    from jobledger.ledger.owner_key import WrapKey

_BYTES: Final = 32
_KINDS: Final = ("file", "env", "exec")
_FILE_BYTES_MAX: Final = 64 << 10


class WrappedSecret(NamedTuple):
    """A secret as a master key wrapped it."""

    master: str  #: the name of the master key
    wrapped: bytes


class Masters(Protocol):
    """Whoever has master keys."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Which ones; None: it does not say."""
        ...

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret:
        """Wrap a secret with the newest master key. Raises: KeyUnavailableError."""
        ...

    async def unwrap(self, master: str, wrapped: bytes, about: bytes) -> bytes:
        """Return a secret; `master`: the name of the key that wrapped it. Raises: KeyUnavailableError, SealBrokenError."""
        ...

    async def close(self) -> None:
        """Let go of them."""
        ...


class MastersHere:
    """Master keys in the memory of this process."""

    def __init__(self, keys: Mapping[str, WrapKey]) -> None:
        """`keys`: at least one, the one that wraps first."""
        self._keys = dict(keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys."""
        return tuple(self._keys)

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret:
        """Wrap with the first key; see `Masters.wrap`."""
        name, key = next(iter(self._keys.items()))
        return WrappedSecret(name, key.wrap(secret, about))

    async def unwrap(self, master: str, wrapped: bytes, about: bytes) -> bytes:
        """Unwrap with the key that is named; see `Masters.unwrap`."""
        key = self._keys.get(master)
        if key is None:
            raise KeyUnavailableError(
                f"the master key {master} is not here (here: {', '.join(self._keys)}): add it to the master keys"
            )
        return key.unwrap(wrapped, about)

    async def close(self) -> None:
        """Forget the keys."""
        self._keys.clear()


_ANSWER_S: Final = 10.0
_LINE_BYTES_MAX: Final = 64 << 10


class _Answer(msgspec.Struct, frozen=True):
    master: str = ""
    wrapped: bytes = b""
    secret: bytes = b""
    error: str = ""


class KeyService:
    """`Masters` behind a program; one question at a time."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    @property
    def names(self) -> None:
        """None: the program knows which it has."""
        return

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret:
        """Have a secret wrapped; see `Masters.wrap`."""
        answer = await self._ask({"do": "wrap", "secret": secret, "about": about})
        if not answer.master or not answer.wrapped:
            raise self._trouble("it wrapped nothing")
        return WrappedSecret(answer.master, answer.wrapped)

    async def unwrap(self, master: str, wrapped: bytes, about: bytes) -> bytes:
        """Have a secret unwrapped; see `Masters.unwrap`."""
        question: dict[str, object] = {
            "do": "unwrap",
            "master": master,
            "wrapped": wrapped,
            "about": about,
        }
        answer = await self._ask(question)
        if not answer.secret:
            raise self._trouble("it unwrapped nothing")
        return answer.secret

    async def _ask(self, question: dict[str, object]) -> _Answer:
        async with self._asking:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    line = await self._exchange(msgspec.json.encode(question) + b"\n")
            except TimeoutError as error:
                await self.close()
                raise self._trouble(f"it gave no answer within {_ANSWER_S:g} s") from error
            except (OSError, ValueError) as error:
                await self.close()
                raise self._trouble(str(error)) from error
            except asyncio.CancelledError:
                # Its answer would be taken for that to the next question, which may be about another owner's key.
                await self.close()
                raise
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except msgspec.MsgspecError as error:
            await self.close()  # what else it writes answers another question
            raise self._trouble(
                "it ended" if not line else "its answer is no JSON object of the right form"
            ) from error
        if answer.error:
            raise self._trouble(answer.error[:300])
        return answer

    async def _exchange(self, question: bytes) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, limit=_LINE_BYTES_MAX
            )
        assert process.stdin is not None, "a pipe was asked for"
        assert process.stdout is not None, "a pipe was asked for"
        process.stdin.write(question)
        await process.stdin.drain()
        return await process.stdout.readline()

    def _trouble(self, why: str) -> KeyUnavailableError:
        return KeyUnavailableError(f"the program of master keys {self._command[0]}: {why}")

    async def close(self) -> None:
        """End the program."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def masters_of(source: str, variables: Mapping[str, str]) -> Masters:
    """Return the master keys that a setting names: `file:PATH`, `env:NAME` or `exec:PROGRAM`.

    Raises: ConfigurationError.
    """
    kind, _, rest = source.partition(":")
    if kind not in _KINDS or not rest:
        raise ConfigurationError(
            "master_key must be file:PATH, env:NAME or exec:PROGRAM, and it is none of them: give no key itself there"
        )
    if kind == "exec":
        return KeyService(rest)
    return MastersHere(
        _keys_in(_text_of_file(Path(rest)) if kind == "file" else _text_of_variable(rest, variables), source)
    )


def _text_of_file(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise ConfigurationError(f"the file of master keys {path} cannot be read: {why}") from error


def _text_of_variable(name: str, variables: Mapping[str, str]) -> str:
    if not (text := variables.get(name, "")):
        raise ConfigurationError(f"master_key names the variable {name}, which is not set")
    return text


def _keys_in(text: str, source: str) -> dict[str, WrapKey]:
    """Return the keys in a text, one a line. Raises: ConfigurationError, whose sentence shows no part of a key."""
    from jobledger.ledger.owner_key import WrapKey  # noqa: PLC0415 - an extra

    keys: dict[str, WrapKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, encoded = words
            secret = base64.b64decode(encoded, validate=True)
            check_token("master key", name)
        except (ValueError, binascii.Error, InvalidTokenError):
            name, secret = "", b""
        if len(secret) != _BYTES or name in keys:
            raise ConfigurationError(
                f"line {number} of the master keys in {source} must be a new name and base64 of {_BYTES} bytes"
            )
        keys[name] = WrapKey(secret)
    if not keys:
        raise ConfigurationError(
            f"{source} holds no master key: a line is a name and base64 of {_BYTES} random bytes"
        )
    return keys
