"""Altering copies of an export as an accident does, or as somebody who knows the format and wants to deceive."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jobledger.audit.export import read_export, read_manifest
from jobledger.audit.export.files import encode_line
from jobledger.audit.export.manifest import MANIFEST, ExportedFile, file_name, manifest_bytes, sealed
from jobledger.ledger.model.codec import Message, decode, digest, encode


class Line(NamedTuple):
    """An event as an export has it, whatever it is."""

    stream_sequence: int
    stored_at: datetime
    subject: str
    data: bytes

    @property
    def chain(self) -> str:
        return ".".join(self.subject.split(".")[:4])

    def with_event(self, **changes: Any) -> Line:
        """Return the line with other fields in its event."""
        event = msgspec.structs.replace(decode(self.data), **changes)
        return self._replace(data=encode(event))

    def text(self) -> bytes:
        message = Message(
            stream_sequence=self.stream_sequence,
            stored_at=self.stored_at,
            subject=self.subject,
            data=self.data,
        )
        return encode_line(message)


def lines_of(folder: Path) -> list[Line]:
    return [
        Line(each.stream_sequence, each.stored_at, each.subject, each.data) for each in read_export(folder)
    ]


def relinked(lines: list[Line], chain: str) -> list[Line]:
    """Compute the hash links of a chain again, as who forges history has to."""
    found: list[Line] = []
    newest = ""
    for each in lines:
        line = each
        if line.chain == chain:
            line = line.with_event(prev=newest)
            newest = digest(line.data)
        found.append(line)
    return found


def copied(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def rewritten(folder: Path, change: Callable[[list[Line]], list[Line]], *, manifest: bool) -> None:
    """Change the lines of an export in one file; `manifest`: and all that the manifest says of them, checksum and all."""
    said, lines = read_manifest(folder), change(lines_of(folder))
    assert len(said.files) == 1
    entry = said.files[0]
    data = b"".join(line.text() for line in lines)
    if not manifest:
        (folder / entry.name).write_bytes(data)
        return
    (folder / entry.name).unlink()
    first, last = lines[0].stream_sequence, lines[-1].stream_sequence
    name = file_name(first, max(first, last), "jsonl")
    (folder / name).write_bytes(data)
    hashes = [hashlib.sha256(line.data).digest() for line in lines]
    file = ExportedFile(
        name=name,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        count=len(lines),
        first_sequence=first,
        last_sequence=last,
    )
    forged = msgspec.structs.replace(
        said,
        last_sequence=last if said.complete else said.last_sequence,
        count=len(lines),
        head_hash=hashes[-1].hex(),
        digest=hashlib.sha256(b"".join(hashes)).hexdigest(),
        files=(file,),
    )
    (folder / MANIFEST).write_bytes(manifest_bytes(sealed(forged)))
