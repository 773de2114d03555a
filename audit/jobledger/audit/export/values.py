"""Checking the large values of an export: each file against its name, the list against what the events refer to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.manifest import MANIFEST, ExportedPayloads, Manifest
from jobledger.audit.export.payloads import PAYLOAD_LIST, PayloadLine, listed, payload_problems
from jobledger.audit.verify.payloads import in_words, problem_of
from jobledger.audit.verify.references import Reference, References
from jobledger.audit.verify.report import LargeValues
from jobledger.ledger.model.aggregate import Rule

_PROBLEMS_MAX: Final = 1_000


class Problem(NamedTuple):
    """What is wrong with a large value, or with the list of them."""

    sentence: str
    rule: Rule = "export"
    job: str = ""
    stream_sequence: int = 0


class Values(NamedTuple):
    """What a check of the large values found."""

    problems: list[Problem]
    found: LargeValues
    sentence: str = ""  #: what was compared; "" where nothing was


def check_values(folder: Path, manifest: Manifest, wanted: References) -> Values:
    """Check the large values of an export; `wanted` are the references of all its events.

    Raises: ScratchSpaceError.
    """
    payloads, count = manifest.payloads, len(wanted)
    if isinstance(payloads, msgspec.UnsetType):
        return Values([], LargeValues(count=count, unread=count))
    problems: list[Problem] = []
    for number, problem in enumerate(_problems(folder, manifest, payloads, wanted)):
        if number >= _PROBLEMS_MAX:
            problems.append(Problem(f"more than {_PROBLEMS_MAX:,} large values are not what they were"))
            break
        problems.append(problem)
    if not payloads.included:
        return Values(problems, LargeValues(count=count, unread=count))
    found = LargeValues(count=count, stored=payloads.stored, gone=payloads.gone, differs=payloads.differs)
    return Values(problems, found, f"{in_words(found)}, {payloads.bytes:,} bytes" if count else "")


def _problems(
    folder: Path, manifest: Manifest, payloads: ExportedPayloads, wanted: References
) -> Iterator[Problem]:
    if len(wanted) != payloads.count:
        yield Problem(
            f"{MANIFEST} says that the events refer to {payloads.count:,} large values, and they refer to {len(wanted):,}"
        )
    if not payloads.included:
        return
    for error in payload_problems(folder, manifest):
        place = f", line {error.line:,}" if error.line else ""
        yield Problem(f"{error.file.relative_to(folder)}{place}: {error.problem}")
    # Damage to the list was told just now.
    with contextlib.suppress(ExportDamagedError), contextlib.closing(listed(folder, manifest)) as lines:
        yield from _differences(iter(wanted), lines)


def _differences(wanted: Iterator[Reference], lines: Iterator[PayloadLine]) -> Iterator[Problem]:
    """Walk two lists that are in the same order."""
    want, line = next(wanted, None), next(lines, None)
    while want is not None or line is not None:
        if line is None or (want is not None and want.sha256 < line.sha256):
            assert want is not None, "one of both is there"
            sentence = f"an event refers to the large value {want.sha256}, which {PAYLOAD_LIST} does not list"
            yield Problem(sentence, stream_sequence=want.stream_sequence)
            want = next(wanted, None)
        elif want is None or line.sha256 < want.sha256:
            yield Problem(f"{PAYLOAD_LIST} lists {line.sha256}, to which no event refers")
            line = next(lines, None)
        else:
            problem = problem_of(want, line.state)
            if problem is not None:
                yield Problem(problem, "payload", want.job, want.stream_sequence)
            want, line = next(wanted, None), next(lines, None)
