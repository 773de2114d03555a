"""The setting for how long a ledger keeps events, and where they go then: `RetentionSet`, `evolve`, `decide`. Pure.

A ledger has one such setting, under the name `main`. Each of its events holds the whole state, so the newest one *is*
the state. A keeper moves the events; see `jobledger.admin.keeper`. Released fields never change type, meaning or name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Moment
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.inputs import check_finite

MAIN: Final = "main"  #: the name of a ledger's one setting
SPAN_S_MAX: Final = 100 * 366 * 86_400.0
EVERY_S_MIN: Final = 1.0
EVERY_S_MAX: Final = 86_400.0
_PLACE_MAX: Final = 1_000
#: What is meant as a URI: also one with a slash too few, or in capitals, which would name a folder where a program runs.
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]+:/.", flags=re.ASCII | re.IGNORECASE)
#: The kinds that are taken. pyarrow reads two more, which keep nothing: `mock` lies in memory, and what is written to `file` is
#: not forced to the disk.
_KINDS: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_SECRETS: Final = re.compile(
    r"secret|sig|token|pass|pwd|key", flags=re.IGNORECASE
)  #: in the name of a parameter
_DAY_S: Final = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How long events stay in a ledger, and where they go."""

    keep_s: float = 30 * _DAY_S  #: seconds; no younger event is moved, so ids are remembered for this time
    start: float = 0.6  #: events are moved when they take more than this share of the ledger's room
    aim: float = 0.4  #: down to this share, but no event younger than `keep_s`
    every_s: float = 300.0  #: how often a keeper looks, in seconds
    max_age_s: float | None = None  #: what is older is moved though there is room; none: that stays
    rows_keep_s: float | None = (
        None  #: projections keep rows of moved jobs so long after the job's end, in seconds; none: for ever
    )
    forget_after_s: float | None = (
        None  #: exports of the archive are removed once all of their events are older, in seconds; none: never
    )
    to: str = ""  #: the archive: a folder of the keeper's machine, or a URI; "": a keeper moves nothing


class RetentionSet(Envelope, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on events are kept and moved as in this event."""

    since_form = 2
    retention: str  #: always `main`
    terms: Retention  #: all fields of the setting
    reason: str = ""  #: the person's reason


class RetentionState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The setting after its newest event."""

    terms: Retention
    at: Moment
    by: str
    reason: str = ""
    sequence: int  #: stream sequence of that event


def evolve(_before: RetentionState | None, event: RetentionSet, stream_sequence: int) -> RetentionState:
    """Return the setting after `event`, whatever came before it."""
    return RetentionState(
        terms=event.terms, at=event.at, by=event.by, reason=event.reason, sequence=stream_sequence
    )


class SetRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Change the named fields, and leave the others as they are."""

    changes: Mapping[str, Any]  #: by the names of `Retention`
    reason: str = ""


def decide(before: RetentionState | None, command: SetRetention, stamp: Stamp) -> RetentionSet | None:
    """Return the event that follows from a command; None: nothing would change.

    Raises: InvalidInputError; AccessDeniedError for a principal that may not change the rights of others: the place is
    a path on the keeper's machine, and all events go there in time.
    """
    if stamp.authority is not None:
        stamp.authority.require_everywhere("admin")
    terms = msgspec.structs.replace(Retention() if before is None else before.terms, **command.changes)
    _check_terms(terms)
    if before is not None and terms == before.terms:
        return None
    stamp.require_form(RetentionSet.since_form, "a retention of the ledger's own")
    return RetentionSet(retention=MAIN, **stamp.fact, terms=terms, reason=command.reason)


def _check_terms(terms: Retention) -> None:
    for name, value, least, most in (
        ("keep_s", terms.keep_s, 0.0, SPAN_S_MAX),
        ("every_s", terms.every_s, EVERY_S_MIN, EVERY_S_MAX),
        ("max_age_s", terms.keep_s if terms.max_age_s is None else terms.max_age_s, terms.keep_s, SPAN_S_MAX),
        ("rows_keep_s", terms.rows_keep_s or 0.0, 0.0, SPAN_S_MAX),
        (
            "forget_after_s",
            terms.keep_s if terms.forget_after_s is None else terms.forget_after_s,
            terms.keep_s,
            SPAN_S_MAX,
        ),
    ):
        check_finite(name, value)
        if not least <= value <= most:
            floor = f"{least:,.0f} (keep_s)" if name in {"max_age_s", "forget_after_s"} else f"{least:g}"
            raise InvalidInputError(f"{name} must be from {floor} to {most:,.0f} seconds, got {value:g}")
    check_finite("start", terms.start)
    check_finite("aim", terms.aim)
    if not 0 <= terms.aim < terms.start <= 1:
        raise InvalidInputError(
            f"aim and start are shares of the ledger's room, 0 <= aim < start <= 1: got aim {terms.aim:g} and "
            f"start {terms.start:g}"
        )
    _check_place(terms.to)


def is_uri(place: str) -> bool:
    """Return whether the place of an archive is a URI, such as `s3://bucket/ledger`, and not a folder."""
    return _URI.match(place) is not None


def check_uri(place: str) -> None:
    """Refuse a URI of a kind that keeps nothing, and one with a user or a key in it: events would repeat it.

    Raises: InvalidInputError.
    """
    kind, there, rest = place.partition("://")
    if not there or kind not in _KINDS:
        kinds = ", ".join(f"{each}://" for each in _KINDS)
        raise InvalidInputError(
            f"the URI of an archive begins with one of {kinds}, not with {place.partition(':')[0][:20]!r}: for a folder of this "
            "machine give its path"
        )
    address, _, query = rest.partition("?")
    names = [each.partition("=")[0] for each in query.split("&")]
    if "@" in query or _has_user(kind, address) or any(_SECRETS.search(each) for each in names):
        raise InvalidInputError(
            f"the URI {kind}://... has a user or a key in it, before an @ or in a parameter: leave that out, and give credentials "
            "by the environment of the process, since everybody who may read the ledger reads the URI"
        )


def _has_user(kind: str, address: str) -> bool:
    """Return whether something stands before an @; a key may have a slash in it. Azure puts the name of a container there."""
    before, at, after = address.partition("@")
    return bool(at) and (not kind.startswith("abfs") or ":" in before or "/" in before or "@" in after)


def _check_place(to: str) -> None:
    """Refuse a text that names no folder and no URI. Raises: InvalidInputError."""
    if is_uri(to) and to.isprintable() and len(to) <= _PLACE_MAX:
        check_uri(to)
    elif to and (not to.startswith("/") or not to.isprintable() or len(to) > _PLACE_MAX):
        raise InvalidInputError(
            f"to is {to[:60]!r}: give the whole path of a folder on the keeper's machine, such as /srv/ledger-archive, or a URI, "
            f"such as s3://bucket/ledger, of at most {_PLACE_MAX:,} printable characters"
        )


def retention_words(terms: Retention) -> str:
    """Return a setting for a person: `keep 30 d; above 60 % down to 40 %, into /srv/archive; looks each 300 s`."""
    older = "" if terms.max_age_s is None else f", and what is older than {_span(terms.max_age_s)}"
    rows = "" if terms.rows_keep_s is None else f"; rows of moved jobs stay {_span(terms.rows_keep_s)}"
    gone = "" if terms.forget_after_s is None else f"; forget exports after {_span(terms.forget_after_s)}"
    where = f"into {terms.to}" if terms.to else "into the folder that the keeper was started with, if any"
    return (
        f"keep {_span(terms.keep_s)}; above {terms.start:.0%} of the room move down to {terms.aim:.0%}{older}, {where}; "
        f"look each {_span(terms.every_s)}{rows}{gone}"
    )


def _span(seconds: float) -> str:
    for unit, name in ((_DAY_S, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:g} s"


def _words(event: RetentionSet) -> str:
    return retention_words(event.terms) + (f": {event.reason}" if event.reason else "")


def _check(_before: RetentionState | None, event: RetentionSet, _stream_sequence: int) -> Iterator[Broken]:
    if event.retention != MAIN:
        yield "subject", f"`set` of retention {event.retention!a}, and there is only {MAIN}"


RETENTION: Aggregate[RetentionSet, RetentionState] = Aggregate(
    "retention",
    ("retention",),
    RetentionSet,
    state=RetentionState,
    evolve=evolve,
    words=_words,
    check=_check,
    restated=True,
)
