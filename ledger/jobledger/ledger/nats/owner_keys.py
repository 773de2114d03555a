"""The bucket KEYS: one entry for each owner, whose key is wrapped by a master key. Source: ADR 065.

It is the one thing here that is not append-only. To destroy a key, the entry is written without it first, and then each
older message of the entry is deleted in the way that writes other bytes over it; a delete marker, a purge or an overwrite
would leave the bytes on the disk. Whoever dies in between leaves a key that nobody gets any more, and the next call
deletes its bytes.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jobledger.ledger.model.errors import (
    ConfigurationError,
    ErasedError,
    KeyUnavailableError,
    LedgerFullError,
    OwnerErasingError,
    PermissionRefusedError,
    RefusedError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.seals import ValueKey, check_owner, number_of, owner_of
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, resolve
from jobledger.ledger.nats.streams import ensure_stream, keys_specification
from jobledger.ledger.nats.writer import AppendRefusedError, Writer

if TYPE_CHECKING:
    from jobledger.ledger.masters import Masters
    from jobledger.ledger.owner_key import OwnerKey

#: How long a process keeps a key in memory: so long after its destruction others may still use it.
CACHE_S: Final = 60.0
_CACHE_MAX: Final = 10_000
_RACES_MAX: Final = 8
_TOLD_EACH: Final = 1_000
#: Older messages of one entry: the bucket keeps two, and each call deletes what it finds.
_OLDER_MAX: Final = 16
_NO_MASTER: Final = (
    "this process has no master key: set JOBLEDGER_MASTER_KEY to file:PATH, env:NAME or exec:PROGRAM"
)


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the bucket holds of an owner."""

    number: int  #: of the newest key, from 1
    wrapped: bytes = b""  #: the key; b"" once it is destroyed
    master: str = ""  #: the master key that wraps it
    masters: tuple[
        str, ...
    ] = ()  #: every master key that ever wrapped it: a copy of the entry opens with one of these
    closed: bool = False  #: the owner's data is being erased: nothing new is sealed
    erased_at: datetime | None = None  #: when the newest key was destroyed


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry, and its sequence in the bucket."""

    entry: KeyEntry
    sequence: int


class RewrappedKeys(NamedTuple):
    """What came of wrapping the keys with another master key."""

    master: str  #: the master key that wraps now
    changed: int  #: how many owners' keys another one wrapped before


class OwnerKeys:
    """The keys of owners; a `KeyHolder`."""

    def __init__(
        self,
        inbox: Inbox,
        writer: Writer,
        names: Names,
        masters: Masters | None,
        *,
        log: Log,
        replicas: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inbox = inbox
        self._writer = writer
        self._names = names
        self.masters = masters  #: None: nothing can be sealed or unsealed here
        self._log = log  #: asked for what became of an owner of whom the bucket has nothing
        self._replicas = replicas
        self._monotonic = monotonic
        self._stream = f"KV_{names.keys_bucket}"
        self._prefix = f"$KV.{names.keys_bucket}."
        self._kept: OrderedDict[str, tuple[float, OwnerKey]] = OrderedDict()  #: by owner: the newest key
        self._is_made = False

    @property
    def masters_here(self) -> tuple[str, ...] | None:
        """The names of the master keys of this process; None: a program has them."""
        return () if self.masters is None else self.masters.names

    # A `KeyHolder`.

    def kept(self, owner: str) -> OwnerKey | None:
        """Return the newest key of an owner, if it was read within the last `CACHE_S`; see `KeepsKeys.kept`."""
        kept = self._kept.get(owner)
        if kept is None:
            return None
        if kept[0] <= self._monotonic():
            del self._kept[owner]
            return None
        return kept[1]

    async def key_for(self, owner: str) -> ValueKey:
        """Return the key for new values of an owner, made where there is none; see `KeyHolder.key_for`."""
        if (kept := self.kept(check_owner(owner))) is not None:
            return kept
        if self.masters is None:
            raise ConfigurationError(f"owner {owner} needs a key, and {_NO_MASTER}")
        for _ in range(_RACES_MAX):
            found = await self.entry(owner)
            if found is not None and found.entry.closed:
                raise OwnerErasingError(owner)
            if found is not None and found.entry.wrapped:
                return await self._keep(owner, found.entry)
            try:
                made = await self._make(owner, found)
            except WrongSequenceError:  # somebody else was faster
                continue
            return await self._keep(owner, made)
        raise KeyUnavailableError(f"the key of owner {owner} changes all the time: try again")

    async def key(self, key_id: str) -> ValueKey:
        """Return the key that an event names; see `KeyHolder.key`."""
        owner = owner_of(key_id)
        kept = self.kept(owner)
        if kept is not None and kept.id == key_id:
            return kept
        try:
            found = await self.entry(check_owner(owner))
        except PermissionRefusedError as error:
            raise KeyUnavailableError(f"the key {key_id} cannot be read: {error}") from error
        if found is None:
            raise KeyUnavailableError(
                f"the key {key_id} is not in the bucket {self._names.keys_bucket}: restore it"
            )
        entry, number = found.entry, number_of(key_id)
        if entry.number > number or (entry.number == number and not entry.wrapped):
            raise ErasedError(key_id, entry.erased_at if entry.number == number else None)
        if entry.number < number:
            raise KeyUnavailableError(
                f"the bucket {self._names.keys_bucket} is older than the key {key_id}: restore it"
            )
        return await self._keep(owner, entry)

    def forget(self, owner: str) -> None:
        """Keep the owner's key in memory no longer."""
        self._kept.pop(owner, None)

    # Entries.

    async def entry(self, owner: str) -> FoundEntry | None:
        """Return what the bucket holds of an owner now. Raises: KeyUnavailableError."""
        try:
            found = await api.get_message(self._inbox, self._stream, {"last_by_subj": self._subject(owner)})
        except (UnreachableError, api.ApiError) as error:
            raise KeyUnavailableError(
                f"the bucket {self._names.keys_bucket} gave no answer: {error}"
            ) from error
        if found is None:
            return None
        try:
            return FoundEntry(msgspec.json.decode(found.content, type=KeyEntry), found.stream_sequence)
        except msgspec.MsgspecError as error:
            raise KeyUnavailableError(
                f"the entry of owner {owner} in {self._names.keys_bucket} cannot be read: upgrade jobledger"
            ) from error

    async def close(self, owner: str, number: int) -> None:
        """Let nothing new be sealed for an owner whose key `number` is to be destroyed; a later key stays open.

        Raises: KeyUnavailableError, WrongSequenceError after too many lost races.
        """

        def closed(entry: KeyEntry) -> KeyEntry:
            return msgspec.structs.replace(entry, closed=True) if entry.number == number else entry

        await self._change(owner, closed)

    async def destroy(self, owner: str, number: int, at: datetime) -> None:
        """Destroy a key of an owner, and its bytes on the server's disk; safe to repeat, also after a death in between.

        Raises: KeyUnavailableError, WrongSequenceError after too many lost races.
        """

        def without(entry: KeyEntry) -> KeyEntry:
            if entry.number != number or (not entry.wrapped and entry.erased_at is not None):
                return entry
            return msgspec.structs.replace(entry, wrapped=b"", master="", erased_at=at)

        self.forget(owner)
        await self._change(owner, without)
        await self._erase_older(owner)

    async def open(self, owner: str, number: int) -> None:
        """Let new values of an owner be sealed again, under another key than the destroyed one.

        Raises: as `close`.
        """

        def opened(entry: KeyEntry) -> KeyEntry:
            return msgspec.structs.replace(entry, closed=False) if entry.number == number else entry

        await self._change(owner, opened)
        await self._erase_older(owner)

    # Master keys.

    async def rewrap(self, told: Callable[[int], None]) -> RewrappedKeys:
        """Wrap each key with the newest master key; safe to repeat, also after a death in between.

        `told` gets the number of entries looked at, now and then.

        Raises: ConfigurationError, KeyUnavailableError, SealBrokenError; RefusedError where another process undoes it;
            WrongSequenceError after too many lost races.
        """
        masters = self._masters_here()
        newest = (await masters.wrap(bytes(32), b"which")).master
        changed, looked_at = set[str](), 0
        async for owner, found in self.entries():
            if await self._rewrap(owner, found, newest):
                if owner in changed:  # two processes would go on for ever: a changed entry is read again
                    raise RefusedError(
                        f"another process wraps the key of owner {owner} with another master key than {newest} at this "
                        "moment: put the same master key first in every process, then run it again"
                    )
                changed.add(owner)
            looked_at += 1
            if looked_at % _TOLD_EACH == 0:
                told(looked_at)
        return RewrappedKeys(newest, len(changed))

    async def _rewrap(self, owner: str, found: FoundEntry, newest: str) -> bool:
        """Wrap one owner's key with the newest master key; return whether another one wrapped it."""
        now: FoundEntry | None = found
        for _ in range(_RACES_MAX):
            if now is None or not now.entry.wrapped or now.entry.master == newest:
                return False
            try:
                await self._put(owner, await self._rewrapped(owner, now.entry), now.sequence)
            except WrongSequenceError:
                now = await self.entry(owner)
                continue
            return True
        raise WrongSequenceError(self._subject(owner), found.sequence)

    async def _rewrapped(self, owner: str, entry: KeyEntry) -> KeyEntry:
        masters, about = self._masters_here(), self._about(owner, entry.number)
        secret = await masters.unwrap(entry.master, entry.wrapped, about)
        master, wrapped = await masters.wrap(secret, about)
        known = tuple(dict.fromkeys((*entry.masters, master)))
        return msgspec.structs.replace(entry, wrapped=wrapped, master=master, masters=known)

    async def forget_master(self, name: str) -> int:
        """Delete what a master key wrapped of old messages from the server's disk; return of how many owners.

        Raises: RefusedError while it wraps the newest key of an owner; KeyUnavailableError.
        """
        used, count = 0, 0
        async for _, found in self.entries():
            used += found.entry.master == name
        if used:
            raise RefusedError(
                f"the master key {name} wraps the keys of {used:,} owners: `jobledger owners master rotate` first"
            )
        async for owner, found in self.entries():
            if name in found.entry.masters:
                await self._erase_older(owner)
                count += 1
        return count

    async def entries(self) -> AsyncGenerator[tuple[str, FoundEntry], None]:
        """Yield each owner with the newest entry, the one that was changed longest ago first.

        An entry that somebody changes meanwhile is yielded once more.

        Raises: KeyUnavailableError.
        """
        sequence = 1
        while True:
            request = {"seq": sequence, "next_by_subj": f"{self._prefix}>"}
            try:
                message = await api.get_message(self._inbox, self._stream, request)
            except (UnreachableError, api.ApiError) as error:
                raise KeyUnavailableError(
                    f"the bucket {self._names.keys_bucket} gave no answer: {error}"
                ) from error
            if message is None:
                return
            sequence = message.stream_sequence + 1
            owner = message.subject.removeprefix(self._prefix).replace(".", ":", 1)
            found = await self.entry(owner)
            if found is not None and found.sequence == message.stream_sequence:
                yield owner, found

    async def bring(self, owner: str, entry: KeyEntry) -> bool:
        """Write an entry that was kept elsewhere where there is none; return whether there was none.

        Raises: LedgerFullError, KeyUnavailableError.
        """
        try:
            await self._put(owner, entry, 0)
        except WrongSequenceError:
            return False
        return True

    # The parts.

    def _masters_here(self) -> Masters:
        if self.masters is None:
            raise ConfigurationError(_NO_MASTER)
        return self.masters

    def _subject(self, owner: str) -> str:
        return self._prefix + owner.replace(":", ".", 1)

    def _about(self, owner: str, number: int) -> bytes:
        return f"jobledger key 1\n{self._names.environment}\n{owner}/{number}".encode()

    async def _keep(self, owner: str, entry: KeyEntry) -> OwnerKey:
        if self.masters is None:
            raise KeyUnavailableError(f"the key {owner}/{entry.number} cannot be opened: {_NO_MASTER}")
        from jobledger.ledger.owner_key import OwnerKey  # noqa: PLC0415 - an extra, which who has no master key may lack

        until = self._monotonic() + CACHE_S  # from before the entry may have changed
        about = self._about(owner, entry.number)
        secret = await self.masters.unwrap(entry.master, entry.wrapped, about)
        key = OwnerKey(f"{owner}/{entry.number}", secret, self._names.environment)
        self._kept[owner] = until, key
        self._kept.move_to_end(owner)
        if len(self._kept) > _CACHE_MAX:
            self._kept.popitem(last=False)
        return key

    async def _make(self, owner: str, found: FoundEntry | None) -> KeyEntry:
        """Make the next key of an owner. Raises: WrongSequenceError where somebody was faster; as `_last_number`."""
        number = 1 + (await self._last_number(owner) if found is None else found.entry.number)
        secret = secrets.token_bytes(32)
        master, wrapped = await self._masters_here().wrap(secret, self._about(owner, number))
        entry = KeyEntry(number=number, wrapped=wrapped, master=master, masters=(master,))
        await self._put(owner, entry, 0 if found is None else found.sequence)
        return entry

    async def _last_number(self, owner: str) -> int:
        """Return the number of the newest key of which the ledger says that it was erased, 0 for none.

        It is asked where the bucket has nothing of an owner, who may be new, or the bucket was lost.

        Raises: OwnerErasingError while an erasure is not done; KeyUnavailableError.
        """
        from jobledger.ledger.model.owner import OWNER, OwnerState  # noqa: PLC0415 - few processes make keys

        try:
            state: OwnerState | None = (await look(self._log, OWNER, owner)).state
        except UnreachableError as error:
            raise KeyUnavailableError(
                f"whether a key of owner {owner} was erased cannot be read: {error}"
            ) from error
        if state is None:
            return 0
        if state.erasing is not None:
            raise OwnerErasingError(owner)
        return state.number

    async def _change(self, owner: str, change: Callable[[KeyEntry], KeyEntry]) -> KeyEntry | None:
        """Change an entry on condition of what was read; None where there is none."""
        for _ in range(_RACES_MAX):
            found = await self.entry(owner)
            if found is None:
                return None
            changed = change(found.entry)
            if changed == found.entry:
                return changed
            try:
                await self._put(owner, changed, found.sequence)
            except WrongSequenceError:
                continue
            return changed
        raise WrongSequenceError(self._subject(owner), 0)

    async def _put(self, owner: str, entry: KeyEntry, expected: int) -> None:
        """Write an entry. Raises: WrongSequenceError, LedgerFullError, KeyUnavailableError."""
        if not self._is_made:
            await ensure_stream(self._inbox, keys_specification(self._names, self._replicas))
            self._is_made = True
        if expected:  # a third message would push the oldest out, whose bytes would stay on the disk
            await self._erase_older(owner)
        subject = self._subject(owner)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        written = Entry(subject, msgspec.json.encode(entry), subject, expected)
        self._writer.send((written,), functools.partial(resolve, answer))
        try:
            await answer
        except (ConnectionLostError, ReplyTimeoutError) as error:
            raise KeyUnavailableError(f"the key of owner {owner} was not stored: no answer") from error
        except AppendRefusedError as error:
            if error.is_lost_race:
                raise WrongSequenceError(subject, expected) from error
            if error.is_full:
                raise LedgerFullError(f"there is no room for the key of owner {owner}: {error}") from error
            raise

    async def _erase_older(self, owner: str) -> None:
        """Delete the messages of an entry before its newest one, and write other bytes over them.

        Raises: KeyUnavailableError.
        """
        newest = await self.entry(owner)
        if newest is None:
            return
        try:
            for _ in range(_OLDER_MAX):
                request = {"seq": 1, "next_by_subj": self._subject(owner)}
                oldest = await api.get_message(self._inbox, self._stream, request)
                if oldest is None or oldest.stream_sequence >= newest.sequence:
                    return
                await self._erase(oldest.stream_sequence)
        except (UnreachableError, api.ApiError) as error:
            raise KeyUnavailableError(f"an older key of owner {owner} was not deleted: {error}") from error

    async def _erase(self, sequence: int) -> None:
        await api.erase_if_there(self._inbox, self._stream, sequence)  # else somebody else was faster
