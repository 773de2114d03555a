"""The forms of events: of a whole ledger, and of jobs carried by an archive run of an earlier release. Pure.

Source: ADR 043 (what is carried), ADR 057 (a ledger's form).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import msgspec

#: The form of ledgers that were made before ledgers had one.
FORM_FIRST: Final = 1
#: The highest form that this program reads. It writes what the ledger's own form allows; people raise that form once
#: no program reads less. Raise this constant with the first new event, after a release, that earlier programs must not
#: ignore.
FORM: Final = 2
#: From this form on a failure may queue its job again by itself: `failed` with `v: 2` (ADR 058).
RETRIES_FORM: Final = 2
#: From this form on a job may have an owner: its events have `v: 2` and sealed values (ADR 065).
SEALED_FORM: Final = 2

#: From this form on a process that refers to a large value, which is marked as unnamed, writes the value again, so
#: that the marked copy may be deleted (ADR 069).
MARKED_FORM: Final = 2

#: The form of a carried job or schedule. Raise it with the first new field of theirs after a release. 0 stands for
#: releases without such a number.
CARRIED_FORM: Final = 1

_T = TypeVar("_T")


def in_form(form: int, known: _T, said: _T) -> _T:
    """Return a known job or schedule in the form of a `carried` event, to compare it with that event's `said`.

    An event of an earlier form is compared in all that it holds. Its writer may lack a field that is left at its
    default, at whatever depth.
    """
    return known if form >= CARRIED_FORM else _as_said(known, said)


def _as_said(known: Any, said: Any) -> Any:
    if known == said or type(known) is not type(said):
        return known
    if isinstance(known, msgspec.Struct):
        pairs = ((name, getattr(known, name), getattr(said, name)) for name in known.__struct_fields__)
        defaults = _defaults(type(known))
        changed = {
            name: then if name in defaults and then == defaults[name] else _as_said(now, then)
            for name, now, then in pairs
            if now != then
        }
        return msgspec.structs.replace(known, **changed)
    if isinstance(known, tuple):
        several: tuple[Any, ...] = known  # pyright: ignore[reportUnknownVariableType]
        return tuple(map(_as_said, several, said)) if len(several) == len(said) else several
    return known


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a class that may be left out, with their defaults."""
    return {
        each.name: each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
        for each in msgspec.structs.fields(kind)
        if not each.required
    }
