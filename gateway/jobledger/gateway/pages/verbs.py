"""Verbs as forms of pages: what a form sends is read by the declarations of `jobledger.admin.verbs`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from jobledger.admin.verbs.kit import Declaration, Field, Verb, declared_in, fields_of, read_words
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.pages.page import Fields, Form, OwnPage, SentForm, Viewer
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import InvalidInputError

#: Makes a page of what a verb answered: async (looked, answer).
Teller = Callable[[Viewer, Any], Awaitable[OwnPage]]
_BETWEEN: Final = re.compile(r"[\s,]+")


def forms_of(module: ModuleType, told: Mapping[type[Verb[Any]], Teller] = {}) -> Iterator[Form]:
    """Yield a form for each verb that a module declares with the address of one.

    `told`: pages of the verbs whose answer has something that no other page shows.
    """
    return (form_of(each, told.get(each.verb)) for each in declared_in(module) if each.form)


def form_of(declaration: Declaration, tell: Teller | None = None) -> Form:
    """Return the form of a verb; a field that is left empty is as if it were not given."""
    fields = fields_of(declaration.verb)

    async def act(sent: SentForm, **words: str) -> str | OwnPage:
        now = sent.gateway.ledger.clock.now()
        if declaration.asks_why:
            sent.fields.reason()
        given: dict[str, Any] = dict(words)
        for each in fields:
            if each.name not in given and (typed := _typed(each, sent.fields)):
                given[each.name] = _read(each, typed, now)
        try:
            wish = declaration.verb(**given)
        except TypeError as error:
            missing = ", ".join(
                each.wire for each in fields if each.default is msgspec.NODEFAULT and each.name not in given
            )
            raise ProblemError("BAD_REQUEST", f"the form lacks {missing}: fill it in") from error
        except InvalidInputError as error:
            raise ProblemError("BAD_REQUEST", str(error)) from error
        found = await wish.perform(GatewayPlace(sent))
        return wish.page_after(found) if tell is None else await tell(sent.looked, found)

    return Form(path=declaration.form, permission=declaration.permission, act=act)


def _typed(field: Field, sent: Fields) -> list[str]:
    """Return the words of a field that was filled in; those of a list may share one box, apart by spaces or commas."""
    texts = [text.strip().replace("\r\n", "\n") for text in sent.many(field.wire)]
    return [word for text in texts for word in (_BETWEEN.split(text) if field.is_many else [text]) if word]


def _read(field: Field, words: list[str], now: Any) -> Any:
    if field.kind is bool:
        return True
    try:
        return read_words(field, words, field.wire, now)
    except InvalidInputError as error:
        raise ProblemError("BAD_REQUEST", str(error)) from error
