"""The demo's task: index one source file. Some files of the standard library cannot be tokenized, on purpose."""

from __future__ import annotations

import hashlib
import io
import tokenize
from pathlib import Path

import msgspec

from jobledger.ledger import Backoff, task


class FileIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an indexed file."""

    sha256: str
    size_bytes: int
    lines: int
    tokens: int


@task(name="index_file", queue="index", max_attempts=3, backoff=Backoff(base_s=0.1))
def index_file(path: str) -> FileIndex:
    """Read a Python file once; raise the error of `tokenize` for other text. A thread runs it: it only computes."""
    data = Path(path).read_bytes()
    return FileIndex(
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        lines=data.count(b"\n") + (not data.endswith(b"\n") and bool(data)),
        tokens=sum(1 for _ in tokenize.tokenize(io.BytesIO(data).readline)),
    )
