"""Checking the large values of an export: each file against its name, the list against what the events refer to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.manifest import MANIFEST, ExportedPayloads, Manifest
from jobledger.audit.export.payloads import PAYLOAD_LIST, Listed, listed, payload_problems
from jobledger.audit.export.references import Reference, References

_PROBLEMS_MAX: Final = 1_000
WHAT: Final = "large values"


class Values(NamedTuple):
    """What a check of the large values found."""

    problems: list[tuple[int, str]]  #: stream sequence, 0 for none, and sentence
    sentence: str  #: what was compared; "" where nothing was
    unread: str = ""  #: what was not, and so is not proven


def check_values(folder: Path, manifest: Manifest, wanted: References) -> Values:
    """Check the large values of an export; `wanted` are the references of all its events.

    Raises: ScratchSpaceError.
    """
    payloads, count = manifest.payloads, len(wanted)
    if isinstance(payloads, msgspec.UnsetType):
        if not count:
            return Values([], "")
        return Values(
            [], "", f"{_values(count)}, which exports of this older format leave in the object store"
        )
    problems: list[tuple[int, str]] = []
    for number, (sequence, sentence) in enumerate(_problems(folder, manifest, payloads, wanted)):
        if number >= _PROBLEMS_MAX:
            problems.append((0, f"more than {_PROBLEMS_MAX:,} of the large values are not what they were"))
            break
        problems.append((sequence, sentence))
    if not count:
        return Values(problems, "")
    if not payloads.included:
        return Values(problems, "", f"{_values(count)}, which were left out of the export")
    gone = f"; {payloads.missing:,} were gone when it was written" if payloads.missing else ""
    held = payloads.count - payloads.missing
    return Values(
        problems, f"{held:,} of {payloads.count:,} are in the export, {payloads.bytes:,} bytes{gone}"
    )


def _values(count: int) -> str:
    return (
        "the large value that an event refers to"
        if count == 1
        else f"the {count:,} large values that events refer to"
    )


def _problems(
    folder: Path, manifest: Manifest, payloads: ExportedPayloads, wanted: References
) -> Iterator[tuple[int, str]]:
    if len(wanted) != payloads.count:
        yield (
            0,
            f"{MANIFEST} says that the events refer to {payloads.count:,} large values, and they refer to {len(wanted):,}",
        )
    if not payloads.included:
        return
    for error in payload_problems(folder, manifest):
        place = f", line {error.line:,}" if error.line else ""
        yield 0, f"{error.file.relative_to(folder)}{place}: {error.problem}"
    # Damage to the list was told just now.
    with contextlib.suppress(ExportDamagedError), contextlib.closing(listed(folder, manifest)) as lines:
        yield from _differences(iter(wanted), lines)


def _differences(wanted: Iterator[Reference], lines: Iterator[Listed]) -> Iterator[tuple[int, str]]:
    """Walk two lists that are in the same order."""
    want, line = next(wanted, None), next(lines, None)
    while want is not None or line is not None:
        if line is None or (want is not None and want.sha256 < line.sha256):
            assert want is not None, "one of both is there"
            yield (
                want.stream_sequence,
                f"an event refers to the large value {want.sha256}, which {PAYLOAD_LIST} does not list",
            )
            want = next(wanted, None)
        elif want is None or line.sha256 < want.sha256:
            yield 0, f"{PAYLOAD_LIST} lists {line.sha256}, to which no event refers"
            line = next(lines, None)
        else:
            want, line = next(wanted, None), next(lines, None)
