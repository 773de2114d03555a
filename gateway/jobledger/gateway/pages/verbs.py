"""Verbs as forms of pages: what a form sends is read by the declarations of `jobledger.admin.verbs`."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec

from jobledger.admin.verbs.kit import Declaration, Field, declared_in, fields_of, read_words
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.pages.page import Fields, Form, Sent
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import InvalidInputError


def forms_of(module: ModuleType) -> Iterator[Form]:
    """Yield a form for each verb that a module declares with the address of one."""
    return (form_of(each) for each in declared_in(module) if each.form)


def form_of(declaration: Declaration) -> Form:
    """Return the form of a verb; a field that is left empty is as if it were not given."""
    fields = fields_of(declaration.verb)

    async def act(sent: Sent, **words: str) -> str:
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
        return wish.page_after(found)

    return Form(path=declaration.form, permission=declaration.permission, act=act)


def _typed(field: Field, sent: Fields) -> list[str]:
    """Return the words of a field that was filled in; those of a list may stand in one box, apart by spaces."""
    texts = [text.strip().replace("\r\n", "\n") for text in sent.many(field.wire)]
    return [word for text in texts for word in (text.split() if field.is_many else [text]) if word]


def _read(field: Field, words: list[str], now: Any) -> Any:
    if field.kind is bool:
        return True
    try:
        return read_words(field, words, field.wire, now)
    except InvalidInputError as error:
        raise ProblemError("BAD_REQUEST", str(error)) from error
