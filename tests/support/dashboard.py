"""Pages of the dashboard as they are sent, without a browser: who looks, and what holds for every page."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Final

import httpx
import msgspec
from tests.support.open_gateway import LocalAccess

from jobledger.gateway.pages.dashboard import POLICY
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES, Permission, Role

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"


class Someone(LocalAccess):
    """Lets everybody in as one of some roles."""

    def __init__(
        self, role: Role, queues: tuple[str, ...] = ("*",), *, without: tuple[Permission, ...] = ()
    ) -> None:
        super().__init__()
        may = ROLES[role] - set(without)
        self.one = Principal(name=f"ann {HOSTILE}", permissions=may, queues=queues)

    def principal(self, connection: object) -> Principal:
        return self.one


def token_of(text: str) -> str:
    """Return the token of the forms of a page."""
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found is not None, "the page has no form"
    return found[1]


def check_page(answer: httpx.Response) -> None:
    """Look at what holds for every page."""
    text = answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>alert" not in text
    assert "<img" not in text
    assert " style=" not in text
    assert "<style" not in text
    assert not re.search(r"<[^>]+\son\w+=", text)
    assert all("src=" in each for each in re.findall(r"<script[^>]*>", text))
    for form in re.findall(r'<form[^>]*method="post".*?</form>', text, re.DOTALL):
        assert 'name="token"' in form
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "an id stands twice"


def hidden_fields(text: str) -> dict[str, str]:
    """Return the hidden fields of the forms of a page."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


class Form(msgspec.Struct):
    """A form of a page, with what it holds before a person types anything."""

    method: str
    action: str
    fields: dict[str, str] = {}
    choices: dict[str, list[str]] = {}
    actions: list[str] = []  #: of its buttons that have one of their own
    kinds: dict[str, str] = {}  #: of each field its type, with `required` or `readonly` behind it


#: What an element says of a field beside its type.
_MARKS: Final = ("required", "readonly", "hidden", "multiple")


class Forms(HTMLParser):
    """Finds the forms of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._open: Form | None = None
        self._name = ""
        self._select = ""
        self._is_chosen = False  # the text of this option is what its field is sent with
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take up a form and what is in it."""
        said = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = Form(said.get("method", "get"), said.get("action", ""))
            self.found.append(self._open)
        form, name = self._open, said.get("name", "")
        if form is None:
            return
        if tag in ("input", "textarea", "select") and name:
            form.fields[name] = said.get("value", "")
        if tag in ("input", "textarea", "select", "button") and name:
            kind = said.get("type", "text") if tag == "input" else tag
            form.kinds[name] = " ".join([kind, *(each for each in _MARKS if each in said)])
        if tag in ("textarea", "select"):
            self._name = name if tag == "textarea" else ""
            form.choices.setdefault(name, [])
            self._select = name
        if tag == "option":
            self._is_chosen = "selected" in said and "value" not in said
        if tag == "option" and "selected" in said:
            form.fields[self._select] = said.get("value", "")
        if tag == "option" and "value" in said:
            form.choices.get(self._select, []).append(said["value"])
        if "formaction" in said:
            form.actions.append(said["formaction"])

    def handle_endtag(self, tag: str) -> None:
        """Leave a form, or a field."""
        self._open = None if tag == "form" else self._open
        self._name = "" if tag == "textarea" else self._name
        self._is_chosen = False

    def handle_data(self, data: str) -> None:
        """Take what a field holds."""
        if self._open is not None and self._is_chosen:
            self._open.fields[self._select] = data
        if self._open is not None and self._name:
            self._open.fields[self._name] += data
