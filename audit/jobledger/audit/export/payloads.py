"""The large values of an export: `payloads/<sha256>` beside the events, and `payloads.jsonl`, which lists them.

Each is a file as the object store had it: JSON text. The list is in the order of the digests, a line each,
and the manifest has its sha256; so neither writing nor checking holds more than one line of it, and one chunk
of one file.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Final, Protocol

import anyio.to_thread
import msgspec

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.files import altered_size, unreadable
from jobledger.audit.export.manifest import ExportedPayloads, Manifest
from jobledger.audit.export.remote import at_hand
from jobledger.audit.verify.references import Reference, References
from jobledger.ledger.files import make_folder, open_file, open_to_write, rename_over, sync_file, sync_path
from jobledger.ledger.model.codec import is_digest
from jobledger.ledger.model.errors import PayloadMissingError, PayloadState
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.lifecycle import StoreName

PAYLOADS: Final = "payloads"  #: the folder
PAYLOAD_LIST: Final = "payloads.jsonl"
_DRAFT_SUFFIX: Final = ".part"
_LINE_BYTES_MAX: Final = 1_000
_CHUNK_BYTES: Final = 1 << 20
_VALUE_BYTES_MAX: Final = 1 << 30  #: no ledger takes a larger one

Progress = Callable[[int, int], None]


class PayloadLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A line of the list."""

    sha256: str
    bytes: int  #: as the first event that refers to it says
    store: StoreName
    state: PayloadState  #: what was found when the export was written; only of `stored` values the export has a file


class PayloadSource(Protocol):
    """Where large values come from: `payloads.Stores` of a ledger, or `PayloadFiles` of exports."""

    async def copy(self, store: StoreName, reference: PayloadRef, file: IO[bytes], /) -> None:
        """Write a value to a file, chunk by chunk, and check it.

        Raises: PayloadMissingError when it is gone or damaged; UnreachableError, OSError.
        """
        ...


class PayloadSink(Protocol):
    """Where large values are brought back to."""

    async def keep(self, store: StoreName, reference: PayloadRef, text: bytes, /) -> None:
        """Store a value under its digest, unless it is there."""
        ...


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final[msgspec.json.Decoder[PayloadLine]] = msgspec.json.Decoder(PayloadLine)


async def write_payloads(
    draft: Path, wanted: References, source: PayloadSource | None, on_progress: Progress | None = None
) -> ExportedPayloads:
    """Copy what events refer to into the draft of an export, on the disk when this returns; without `source` nothing.

    Raises: UnreachableError, ScratchSpaceError, OSError.
    """
    total = len(wanted)
    if source is None or not total:
        return ExportedPayloads(
            included=source is not None, count=total, gone=0, differs=0, bytes=0, sha256=""
        )
    folder = draft / PAYLOADS
    make_folder(folder)
    listing, states, size = hashlib.sha256(), Counter[PayloadState](), 0
    with open_to_write(draft / PAYLOAD_LIST, "xb") as file:
        for done, reference in enumerate(wanted, start=1):
            state = await _copy(folder, reference, source)
            states[state] += 1
            size += (folder / reference.sha256).stat().st_size if state == "stored" else 0
            line = _encode(
                PayloadLine(
                    sha256=reference.sha256, bytes=reference.bytes, store=reference.store, state=state
                )
            )
            file.write(line + b"\n")
            listing.update(line + b"\n")
            if on_progress is not None:
                on_progress(done, total)
        sync_file(file)
    await anyio.to_thread.run_sync(sync_path, folder)
    return ExportedPayloads(
        included=True,
        count=total,
        gone=states["gone"],
        differs=states["differs"],
        bytes=size,
        sha256=listing.hexdigest(),
    )


async def _copy(folder: Path, reference: Reference, source: PayloadSource) -> PayloadState:
    """Copy one value, if it is stored; return what became of it."""
    found: PayloadState = "gone"
    draft = folder / f"{reference.sha256}{_DRAFT_SUFFIX}"
    others: tuple[StoreName, ...] = ("inputs", "results")
    for store in sorted(others, key=lambda each: each != reference.store):
        try:
            with open_to_write(draft, "wb") as file:
                await source.copy(
                    store, PayloadRef(sha256=reference.sha256, size_bytes=reference.bytes), file
                )
                await anyio.to_thread.run_sync(sync_file, file)
        except PayloadMissingError as error:
            draft.unlink()
            found = "differs" if error.state == "differs" else found
            continue
        draft.rename(folder / reference.sha256)
        return "stored"
    return found


def clear_payloads(draft: Path) -> bool:
    """Remove what a writer left of large values in its draft; return whether something else is there too."""
    (draft / PAYLOAD_LIST).unlink(missing_ok=True)
    folder = draft / PAYLOADS
    if not folder.is_dir():
        return folder.exists()
    for file in folder.iterdir():
        if not is_digest(file.name.removesuffix(_DRAFT_SUFFIX)):
            return True
        file.unlink()
    folder.rmdir()
    return False


def listed(folder: Path, manifest: Manifest) -> Generator[PayloadLine, None, None]:
    """Yield the lines of an export's list; none where it has none. Close it when leaving early.

    Raises: ExportDamagedError, at the end also when the list is not the one that the manifest names.
    """
    payloads = manifest.payloads
    if isinstance(payloads, msgspec.UnsetType) or not payloads.sha256:
        return
    path, total, before = folder / PAYLOAD_LIST, hashlib.sha256(), ""
    states = Counter[PayloadState]()
    try:
        at_hand(path)
        with open_file(path) as file:
            while line := file.readline(_LINE_BYTES_MAX):
                total.update(line)
                each = _line(path, line, states.total() + 1, before)
                states[each.state] += 1
                before = each.sha256
                yield each
    except OSError as error:
        raise ExportDamagedError(path, unreadable(error)) from error
    found = (total.hexdigest(), states["stored"], states["gone"], states["differs"])
    if found != (payloads.sha256, payloads.stored, payloads.gone, payloads.differs):
        raise ExportDamagedError(path, "it was altered: it is not the list that the manifest says")


def _line(path: Path, line: bytes, number: int, before: str) -> PayloadLine:
    try:
        each = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ExportDamagedError(path, f"the line cannot be read: {error}", line=number) from error
    if not is_digest(each.sha256) or each.sha256 <= before or _encode(each) + b"\n" != line:
        raise ExportDamagedError(path, "the line is not one that was written, or out of order", line=number)
    return each


def list_kept(folder: Path, manifest: Manifest, draft: Path, wanted: References) -> ExportedPayloads:
    """List in a draft the large values of an export that its events still refer to, `wanted`; return what it then says.

    Raises: ExportDamagedError, ScratchSpaceError, OSError.
    """
    payloads, total = manifest.payloads, len(wanted)
    if isinstance(payloads, msgspec.UnsetType) or not payloads.included or not total:
        is_included = not isinstance(payloads, msgspec.UnsetType) and payloads.included
        return ExportedPayloads(included=is_included, count=total, gone=0, differs=0, bytes=0, sha256="")
    listing, states, size = hashlib.sha256(), Counter[PayloadState](), 0
    with open_to_write(draft / PAYLOAD_LIST, "xb") as file:
        for each in _both(listed(folder, manifest), (reference.sha256 for reference in wanted)):
            states[each.state] += 1
            size += (folder / PAYLOADS / each.sha256).stat().st_size if each.state == "stored" else 0
            line = _encode(each) + b"\n"
            file.write(line)
            listing.update(line)
        sync_file(file)
    gone, differs = states["gone"], states["differs"]
    return msgspec.structs.replace(
        payloads, count=total, gone=gone, differs=differs, bytes=size, sha256=listing.hexdigest()
    )


def _both(lines: Iterator[PayloadLine], digests: Iterator[str]) -> Iterator[PayloadLine]:
    """Yield the lines of a list whose digests are among these; both are in the order of the digests."""
    wanted = next(digests, None)
    for each in lines:
        while wanted is not None and wanted < each.sha256:
            wanted = next(digests, None)
        if wanted == each.sha256:
            yield each


def drop_values(folder: Path, before: Manifest, draft: Path, after: Manifest) -> None:
    """Delete the large values that the list of a draft lacks, and put that list in the place of the export's own.

    Does nothing where that was done before. Raises: ExportDamagedError, OSError.
    """
    is_listed = not isinstance(after.payloads, msgspec.UnsetType) and after.payloads.sha256 != ""
    if not (folder / PAYLOAD_LIST).exists() or (is_listed and not (draft / PAYLOAD_LIST).exists()):
        return
    kept = listed(draft, after)
    keep = next(kept, None)
    for each in listed(folder, before):
        while keep is not None and keep.sha256 < each.sha256:
            keep = next(kept, None)
        if keep is None or keep.sha256 != each.sha256:
            (folder / PAYLOADS / each.sha256).unlink(missing_ok=True)
    sync_path(folder / PAYLOADS)
    if is_listed:
        rename_over(draft / PAYLOAD_LIST, folder / PAYLOAD_LIST)
    else:
        (folder / PAYLOAD_LIST).unlink()


def payload_problems(folder: Path, manifest: Manifest) -> Iterator[ExportDamagedError]:
    """Read every large value of an export, and yield what is not as the list says."""
    payloads = manifest.payloads
    if isinstance(payloads, msgspec.UnsetType):
        return
    held = size = 0
    try:
        for each in listed(folder, manifest):
            if each.state != "stored":
                continue
            held += 1
            problem, found = _wrong_file(folder / PAYLOADS / each.sha256, each.sha256)
            size += found
            if problem is not None:
                yield ExportDamagedError(folder / PAYLOADS / each.sha256, problem)
    except ExportDamagedError as error:
        yield error
        return
    if size != payloads.bytes:
        problem = altered_size(size, payloads.bytes)
        yield ExportDamagedError(folder / PAYLOADS, problem)
    there = sum(1 for _ in os.scandir(folder / PAYLOADS)) if (folder / PAYLOADS).is_dir() else 0
    if there > held:
        yield ExportDamagedError(folder / PAYLOADS, f"{there - held:,} files in it are not in {PAYLOAD_LIST}")


def _wrong_file(path: Path, sha256: str) -> tuple[str | None, int]:
    total, size = hashlib.sha256(), 0
    try:
        at_hand(path)
        with open_file(path, bytes_max=_VALUE_BYTES_MAX) as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
                size += len(chunk)
    except OSError as error:
        return unreadable(error), size
    return (None if total.hexdigest() == sha256 else "it was altered: its sha256 is not its name"), size


def _text(path: Path) -> bytes:
    at_hand(path)
    with open_file(path, bytes_max=_VALUE_BYTES_MAX) as file:
        return file.read()


def check_payloads(folder: Path, manifest: Manifest) -> None:
    """Compare every large value with the list.

    Raises: ExportDamagedError.
    """
    for problem in payload_problems(folder, manifest):
        raise problem


class PayloadFiles:
    """The large values of exports, read where they lie; each is checked when it is read."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    async def get(self, _value: object, reference: PayloadRef) -> bytes:
        """Return a value's JSON text; see `Payloads.get`. Raises: PayloadMissingError."""
        return await anyio.to_thread.run_sync(self._read, reference)

    async def copy(self, _store: StoreName, reference: PayloadRef, file: IO[bytes]) -> None:
        """Write a value to a file; see `PayloadSource.copy`."""
        text = await anyio.to_thread.run_sync(self._read, reference)
        await anyio.to_thread.run_sync(file.write, text)

    async def state_of(self, _store: StoreName, reference: PayloadRef) -> PayloadState:
        """Return what became of a value in these exports; see `PayloadStates.state_of`."""
        try:
            await anyio.to_thread.run_sync(self._read, reference)
        except PayloadMissingError as error:
            return error.state
        return "stored"

    def _read(self, reference: PayloadRef) -> bytes:
        name = reference.sha256
        state: PayloadState = "gone"
        for folder in self._folders if is_digest(name) else ():
            try:
                text = _text(folder / PAYLOADS / name)
            except OSError:
                continue
            if hashlib.sha256(text).hexdigest() == name:
                return text
            state = "differs"
        places = ", ".join(str(folder) for folder in self._folders)
        is_what = "differs from what was stored, in" if state == "differs" else "is gone: it is not in"
        raise PayloadMissingError(f"payload {name[:12]}... {is_what} {places}", state=state)


async def import_payloads(
    folder: Path, manifest: Manifest, sink: PayloadSink, on_progress: Progress | None = None
) -> int:
    """Bring the large values of an export back; return how many. Called again it finds them there.

    Raises: ExportDamagedError, UnreachableError, LedgerFullError, OSError.
    """
    payloads = manifest.payloads
    total = 0 if isinstance(payloads, msgspec.UnsetType) else payloads.stored
    count = 0
    for each in listed(folder, manifest):
        if each.state != "stored":
            continue
        path = folder / PAYLOADS / each.sha256
        problem, size = await anyio.to_thread.run_sync(_wrong_file, path, each.sha256)
        if problem is not None:
            raise ExportDamagedError(path, problem)
        reference = PayloadRef(sha256=each.sha256, size_bytes=size)
        await sink.keep(each.store, reference, await anyio.to_thread.run_sync(_text, path))
        count += 1
        if on_progress is not None:
            on_progress(count, total)
    return count
