"""Reports of the checker as files: kept outside the ledger, they tell later what the ledger was then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.verify.report import Report
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError
from jobledger.ledger.opening import open_file, write_whole

#: A report holds figures and a bounded number of violations: what is larger is another file.
_BYTES_MAX: Final = 16 << 20
_HASH: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)


def read_report(path: Path) -> Report:
    """Return the report that `write_report` or `jobledger audit verify --json` wrote.

    Raises: NotFoundError without such a file, InvalidInputError for one that holds no report.
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
    return report


def _holds_together(report: Report) -> bool:
    in_order = 1 <= report.from_sequence <= report.head_sequence + 1
    return in_order and _HASH.fullmatch(report.digest) is not None


def write_report(report: Report, path: Path) -> None:
    """Keep a report as one JSON object; a file of that name is replaced as a whole, or not at all.

    Raises: OSError.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
