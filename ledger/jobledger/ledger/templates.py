"""Templates of the ids, tenants and owners of a task's jobs, such as `charge-{tenant_id}-{invoice}`: checked, and filled in. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal

from jobledger.ledger.limits.keys import METADATA, KeySource, check_source
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, InvalidTokenError
from jobledger.ledger.model.seals import check_owner, is_owner
from jobledger.ledger.model.subjects import check_token

What = Literal["id", "tenant", "owner"]
_FIELD: Final = re.compile(r"\{([^{}]+)\}")


@functools.lru_cache
def _parts(template: str) -> tuple[str, ...]:
    """Return the texts around the fields of a template, and between them the name in each field."""
    return tuple(_FIELD.split(template))


def check_template(what: What, template: object) -> None:
    """Refuse, where a task is defined, a template that no input can fill in.

    Raises: ConfigurationError.
    """
    if not isinstance(template, str) or not template:
        raise ConfigurationError(
            f"{what} of a task must be a text such as 'order-{{number}}', got {template!r}"
        )
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise ConfigurationError(
            f"{what}={template!r} of a task has a brace without its other one, or nothing between two: name an argument, "
            "as {number}"
        )
    if what != "id":
        return
    if not _FIELD.search(template):
        raise ConfigurationError(
            f"id={template!r} of a task names no argument, so all its jobs would be one: name those that tell them apart, "
            f"as {template + '-{number}'!r}"
        )
    try:
        check_token("id", rest or "x")
    except InvalidTokenError as error:
        raise ConfigurationError(f"id={template!r} of a task can be no id: {error}") from error


def check_owner_option(owner: object) -> None:
    """Refuse an owner, or a template, that can never be valid. Raises: ConfigurationError, InvalidInputError."""
    if isinstance(owner, str) and ("{" in owner or "}" in owner):
        check_template("owner", owner)
        check_owner(_FIELD.sub("x", owner))
    else:
        check_owner(owner)


def check_fields(task: str, what: What, template: str, arguments: Collection[str]) -> None:
    """Refuse a template that names an argument its task does not have. Raises: TaskDefinitionError."""
    for source in _FIELD.findall(template):
        check_source(f"the {what}", task, source, arguments)


def owner_of_arguments(template: str, arguments: Callable[[], Mapping[str, object]]) -> str:
    """Return the owner that a template makes of texts and whole numbers of an input; "" if `filled` must tell more."""
    parts = list(_parts(template))
    given = arguments()
    for number in range(1, len(parts), 2):
        value = None if parts[number].startswith(METADATA) else given.get(parts[number])
        if type(value) is int:
            value = str(value)
        if type(value) is not str or not value:
            return ""
        parts[number] = value
    found = "".join(parts)
    return found if is_owner(found) else ""


def owner_but(template: str, job: KeySource, later: Collection[str]) -> str:
    """Return an owner's template, filled except for the arguments in `later`, whose values are not known yet.

    Raises: InvalidInputError, also where no value of these could make it the name of an owner.
    """

    def named(word: str) -> str:
        return _FIELD.sub(
            lambda found: (word or found[0]) if found[1] in later else job.key("the owner", found[1]),
            template,
        )

    check_owner(named("x"))
    return named("")


def filled(what: What, template: str, job: KeySource) -> str:
    """Return the id, the tenant or the owner that a template makes of a job.

    Raises: InvalidInputError if the job lacks a value, or has one that cannot be part of the name.
    """
    parts = list(_parts(template))
    parts[1::2] = [job.key(f"the {what}", source) for source in parts[1::2]]
    found = "".join(parts)
    if what == "id":
        try:
            check_token("job id", found)
        except InvalidTokenError as error:
            raise InvalidInputError(
                f"task {job.task} makes its ids by {template!r}, and this input gives none: {error}"
            ) from error
    return check_owner(found) if what == "owner" else found
