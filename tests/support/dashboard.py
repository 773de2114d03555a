"""Pages of the dashboard as they are sent, without a browser: who looks, and what holds for every page."""

from __future__ import annotations

import html
import re

import httpx

from jobledger.gateway.access.local import LocalAccess
from jobledger.gateway.pages.serving import POLICY
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
