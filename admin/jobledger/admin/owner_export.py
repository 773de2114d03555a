"""The data of an owner in the ledger, unsealed, as files for a person who asks for their own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.to_thread
import msgspec

from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.files import make_folder, open_to_write
from jobledger.ledger.model.envelope import NO_VALUE, PayloadRef
from jobledger.ledger.model.errors import (
    ErasedError,
    InvalidInputError,
    OwnerNotFoundError,
    PayloadMissingError,
    SealBrokenError,
)
from jobledger.ledger.model.seals import Kind, ValueKey, check_owner, is_sealed, unseal_value
from jobledger.ledger.model.subjects import JobRef

_KINDS: Final[tuple[Kind, ...]] = ("value", "error", "text")
_REFS: Final = frozenset({"sha256", "size_bytes"})
_RESULTS: Final = "result_ref"


class OwnerExport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    owner: str
    jobs: int
    events: int
    missing: int  #: values that nobody can read any more, or that are gone


async def export_owner(ledger: Ledger, rows: Rows, owner: str, folder: Path) -> OwnerExport:
    """Write a file for each job of an owner, `<queue>/<job id>.json`: its events in their order, unsealed.

    Raises: InvalidInputError for a folder that exists, OwnerNotFoundError for an owner without jobs; KeyUnavailableError,
        ProjectionError, UnreachableError, OSError.
    """
    check_owner(owner)
    sql = "SELECT queue, id FROM jobs WHERE key >= ? AND key < ? AND key <> '' ORDER BY queue, id"
    async with rows.opened() as view:
        found = view.store.select(sql, (f"{owner}/", f"{owner}0"))
    if not found:
        raise OwnerNotFoundError(owner)
    try:
        await anyio.to_thread.run_sync(_make_new, folder)
    except FileExistsError as error:
        raise InvalidInputError(f"{folder} exists: name a new folder, lest two exports are mixed") from error
    events = missing = 0
    for queue, job_id in found:
        opener, chain = _Opener(ledger), ledger.names.chain(JobRef(queue=queue, job_id=job_id))
        history = [
            await opener.event(stored.event.key, stored.data) for stored in await ledger.log.read_chain(chain)
        ]
        await anyio.to_thread.run_sync(_write, folder / queue / f"{job_id}.json", history)
        events += len(history)
        missing += opener.missing
    return OwnerExport(owner=owner, jobs=len(found), events=events, missing=missing)


def _make_new(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError
    make_folder(folder)


def _write(path: Path, history: list[Any]) -> None:
    make_folder(path.parent)
    with open_to_write(path, "xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(history), indent=1) + b"\n")


class _Opener:
    """The values in one job's events, at any depth."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._key: ValueKey | None = None
        self.missing = 0

    async def event(self, key: str, data: bytes) -> Any:
        """Return an event as JSON has it, with sealed values opened, or the reason why there is none.

        Raises: KeyUnavailableError, UnreachableError.
        """
        try:
            self._key = await self._ledger.keys.key(key) if key else None
        except ErasedError as error:
            self._key = None
            self.missing += 1
            return {**msgspec.json.decode(data), "erased": str(error)}
        return await self._of(msgspec.json.decode(data), "")

    async def _of(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if fields.keys() == _REFS:
                return await self._stored(fields, name)
            return {each: await self._of(found, each) for each, found in fields.items()}
        if isinstance(value, list):
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            return [await self._of(each, name) for each in items]
        return self._unsealed(value) if isinstance(value, str) else value

    async def _stored(self, reference: dict[str, Any], name: str) -> Any:
        store = self._ledger.results if name == _RESULTS else self._ledger.inputs
        try:
            text = await store.get(NO_VALUE, msgspec.convert(reference, PayloadRef), key="")
        except PayloadMissingError as error:
            self.missing += 1
            return {**reference, "missing": str(error)}
        return await self._of(msgspec.json.decode(text), name)

    def _unsealed(self, text: str) -> Any:
        sealed = f'"{text}"'.encode()
        if self._key is None or not is_sealed(sealed):
            return text
        for kind in _KINDS:
            try:
                found = unseal_value(self._key, sealed, kind)
            except SealBrokenError:
                continue
            return found.decode() if kind == "text" else msgspec.json.decode(found)
        self.missing += 1
        return text
