"""Reports of the checker as files: kept outside the ledger, they later prove its former state.

A file may be signed: then its `signature` is Ed25519, in hex, over `SIGNED` and the bytes of the file as it is with an
empty `signature`. So it can be checked without this program, even if later versions add fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.seals.keys import Signer, TrustedKeys
from jobledger.audit.verify.report import Report
from jobledger.ledger.files import open_file, write_whole
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError

#: The beginning of the signed text, so that no seal can be taken for a report.
SIGNED: Final = b"jobledger report 1\n"
#: A report holds figures and a bounded number of violations: a larger file is no report.
_BYTES_MAX: Final = 16 << 20
_HASH: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)


def read_report(path: Path, trusted: TrustedKeys | None = None) -> Report:
    """Return the report that `write_report` or `jobledger audit verify --json` wrote.

    `trusted` are the keys that count; without them a signature is not looked at, and a file without one is taken.

    Raises: NotFoundError without such a file, InvalidInputError for one that holds no report, or whose signature is
        not that of a key that counts.
    """
    try:
        with open_file(path) as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no earlier report {path}: make one with --report") from error
    except OSError as error:
        raise InvalidInputError(f"the earlier report {path} cannot be read: {error.strerror}") from error
    if len(data) > _BYTES_MAX:
        raise InvalidInputError(f"{path} is too large to be a report of `jobledger audit verify`")
    try:
        report = msgspec.json.decode(data, type=Report)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidInputError(f"{path} is not a report of `jobledger audit verify`: {error}") from error
    if not _holds_together(report):
        raise InvalidInputError(
            f"{path} is not a report of `jobledger audit verify`: its range or digest is none"
        )
    if trusted is not None and report.signature:
        _check_signature(path, data, report, trusted)
    return report


def _check_signature(path: Path, data: bytes, report: Report, trusted: TrustedKeys) -> None:
    if report.key not in trusted:
        raise InvalidInputError(
            f"{path} is signed by the key {report.key[:16]}, which is not among those of --seal-key"
        )
    field = _signature_field(report.signature)
    text = SIGNED + data.replace(field, _signature_field(""))
    if data.count(field) != 1 or not trusted.signed(report.key, report.signature, text):
        raise InvalidInputError(f"{path} was altered: its signature is not that of its key over these bytes")


def _signature_field(signature: str) -> bytes:
    return f'"signature": "{signature}"'.encode()


def _holds_together(report: Report) -> bool:
    in_order = 1 <= report.from_sequence <= report.head_sequence + 1
    return in_order and _HASH.fullmatch(report.digest) is not None


def _file_bytes(report: Report, signer: Signer | None) -> bytes:
    if signer is not None:
        report = msgspec.structs.replace(report, key=signer.key_id, signature="")
    data = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    if signer is None:
        return data
    head, field, tail = data.rpartition(_signature_field(""))
    assert field, "the signature is the last field"
    return head + _signature_field(signer.sign(SIGNED + data)) + tail


def write_report(report: Report, path: Path, signer: Signer | None = None) -> None:
    """Keep a report as one JSON object; a file of that name is replaced as a whole, or not at all.

    With `signer` the file is signed.

    Raises: OSError.
    """
    write_whole(path, _file_bytes(report, signer))
