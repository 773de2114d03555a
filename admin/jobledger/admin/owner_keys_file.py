"""The keys of owners as a file: kept apart from back-ups of the ledger, and worth nothing without their master key."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.admin.erasure import keys_of
from jobledger.ledger.client import Ledger
from jobledger.ledger.files import open_file, open_to_write
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.owner import OWNER, OwnerErased, OwnerState
from jobledger.ledger.model.seals import check_owner
from jobledger.ledger.nats.owner_keys import KeyEntry

_BYTES_MAX: Final = 1 << 30


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file."""

    owner: str
    environment: str
    entry: KeyEntry


class BroughtKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a file of keys."""

    owners: int  #: owners in the file
    brought: int  #: how many of them the ledger had no key of
    erased: int  #: how many of their keys were destroyed since: they stay so
    unchanged: int  #: how many of them the ledger has the same entry of
    passed_over: list[str]  #: a sentence on each other owner: the ledger has another entry, which stays


async def keep_keys(ledger: Ledger, file: Path) -> int:
    """Write the newest entry of each owner into a new file; return how many.

    Raises: InvalidInputError for a file that exists; RefusedError, KeyUnavailableError, OSError.
    """
    lines = [
        msgspec.json.encode(KeptEntry(owner=owner, environment=ledger.names.environment, entry=found.entry))
        async for owner, found in keys_of(ledger).entries()
    ]
    try:
        await anyio.to_thread.run_sync(_write, file, lines)
    except FileExistsError as error:
        raise InvalidInputError(f"{file} exists: name a new file") from error
    return len(lines)


def _write(file: Path, lines: list[bytes]) -> None:
    with open_to_write(file, "xb") as opened:
        opened.writelines(line + b"\n" for line in lines)
        opened.flush()
        os.fsync(opened.fileno())


async def bring_keys(ledger: Ledger, file: Path) -> BroughtKeys:
    """Bring the keys of a file back for the owners of whom the ledger has none; safe to repeat.

    A key that the ledger says was erased is not brought back.

    Raises: InvalidInputError for what is no such file, or of another environment; RefusedError, KeyUnavailableError,
        UnreachableError, OSError.
    """
    keys, entries = keys_of(ledger), await anyio.to_thread.run_sync(_read, file, ledger.names.environment)
    brought, erased, unchanged, passed_over = 0, 0, 0, list[str]()
    for kept in entries:
        await asyncio.sleep(0)  # lets other tasks run, however long the file is
        found = await keys.entry(kept.owner)
        if found is None:
            state: OwnerState | None = (await look(ledger.log, OWNER, kept.owner)).state
            entry = _as_recorded(kept.entry, state)
            if await keys.bring(kept.owner, entry):
                brought, erased = brought + 1, erased + (not entry.wrapped)
                continue
            found = await keys.entry(kept.owner)  # somebody else was faster
        if found is not None and (found.entry.number, found.entry.wrapped) != (
            kept.entry.number,
            kept.entry.wrapped,
        ):
            passed_over.append(_why_passed_over(kept, found.entry))
        else:
            unchanged += 1
    return BroughtKeys(
        owners=len(entries), brought=brought, erased=erased, unchanged=unchanged, passed_over=passed_over
    )


def _why_passed_over(kept: KeptEntry, here: KeyEntry) -> str:
    """Return a sentence on an owner of whom the ledger has another entry than the file."""
    owner, key, file = kept.owner, f"{kept.owner}/{kept.entry.number}", kept.entry
    said = f"{owner} was passed over"
    if file.number != here.number:
        return f"{said}: it has the key {owner}/{here.number} here, so what was sealed under {key} cannot be read"
    if not here.wrapped:
        return f"{said}: {key} was destroyed here, and stays so"
    if not file.wrapped:
        return f"{said}: {key} is destroyed in the file, and a key of that number is in use here: it stays"
    return (
        f"{said}: {key} is wrapped otherwise here, by {here.master}; if it was made after the keys were lost, what was "
        "sealed before cannot be read"
    )


def _as_recorded(entry: KeyEntry, state: OwnerState | None) -> KeyEntry:
    """Return an entry as it is by now: without its key if the ledger records that this or a later key was erased."""
    if state is None or state.number < entry.number:
        return entry
    is_erasing = state.erasing is not None
    if is_erasing and state.number == entry.number:
        return msgspec.structs.replace(entry, closed=True)
    # If the owner was held since, the newest event is another one.
    at = state.event.destroyed_at if isinstance(state.event, OwnerErased) else state.event.at
    return KeyEntry(number=state.number, masters=entry.masters, closed=is_erasing, erased_at=at)


def _read(file: Path, environment: str) -> list[KeptEntry]:
    found: list[KeptEntry] = []
    with open_file(file, bytes_max=_BYTES_MAX) as opened:
        for number, line in enumerate(opened, 1):
            try:
                kept = msgspec.json.decode(line, type=KeptEntry)
                check_owner(kept.owner)
            except (msgspec.MsgspecError, InvalidInputError) as error:
                raise InvalidInputError(
                    f"line {number} of {file} is no entry of a file of keys: nothing was brought back"
                ) from error
            if kept.environment != environment:
                raise InvalidInputError(
                    f"{file} is of environment {kept.environment!r}, and this ledger of {environment!r}: connect to that one"
                )
            found.append(kept)
    return found
