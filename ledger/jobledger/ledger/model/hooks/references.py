"""References to secrets in events: the place of a secret, or the secret sealed under a key file. Pure.

`env:NAME` is a variable of the process that needs the secret, `file:/absolute/path` a file on its machine, and
`sealed:...` is the secret itself, encrypted with a key that is in no event.
"""

from __future__ import annotations

import re
from typing import Final

from jobledger.ledger.model.errors import InvalidInputError

_FORMS: Final = (
    re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}", flags=re.ASCII),
    re.compile(r"file:/[^\x00-\x1f\x7f]{1,1023}"),
    re.compile(r"sealed:[A-Za-z0-9_=-]{100,8000}", flags=re.ASCII),
)


def is_reference(value: str) -> bool:
    """Return whether a text has the form of a reference to a secret."""
    return any(form.fullmatch(value) for form in _FORMS)


def check_reference(what: str, value: str) -> str:
    """Return a text in the form of a reference to a secret. No error repeats another text, which may be a secret.

    Raises: InvalidInputError, naming `what`.
    """
    if not is_reference(value):
        raise InvalidInputError(
            f"{what} is no reference to a secret: give env:NAME or file:/absolute/path, where the gateway finds it; "
            "the secret itself would stay in the ledger for ever"
        )
    return value


def reference_words(reference: str) -> str:
    """Return a reference for a person; a sealed secret itself is not shown."""
    return "sealed" if reference.startswith("sealed:") else reference
