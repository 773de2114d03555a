"""The forms of the dashboard: where each goes, who may send it, and its fields, read from the pages that show it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
from tests.support.dashboard import Forms

from jobledger.gateway.pages.table import FORMS, PAGES

#: What the words in braces of a page stand for; a page that shows more for another thing has several.
_WORDS: Final[tuple[Mapping[str, str], ...]] = (
    {"queue": "orders", "id": "order-1", "task": "send"},
    {"queue": "orders", "id": "order-2", "task": "deliver"},
    {"queue": "etl", "id": "totals-1", "task": "totals"},
    *(
        {"queue": "mail", "id": job, "task": "greet"}
        for job in ("waits-1", "later-1", "dead-1", "held-1", "held-2")
    ),
    {"queue": "slow", "id": "slow-1", "task": "greet"},
)
#: What a page is asked for beside its path.
_QUERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "/plan": ("?verb=requeue", "?verb=cancel&state=queued"),
    "/graphs": ("", "?graph=onboarding"),
    "/jobs/{queue}/{id}/rerun": ("?step=reserve",),
    "/jobs/{queue}/{id}/rows": ("?step=rows",),
}


async def form_fields(http: httpx.AsyncClient) -> dict[str, Any]:
    """Return each form by method and path: its permission, and its fields as each of the pages has them."""
    found: dict[str, Any] = {
        f"POST {form.path}": {"permission": form.permission, "shown": []} for form in FORMS
    }
    for page, address in _addresses():
        answer = await http.get(address)
        for form in Forms(answer.text).found if answer.is_success else ():
            if form.method == "dialog":
                continue
            name = f"{form.method.upper()} {_declared(form.method, form.action)}"
            shown = found.setdefault(name, {"shown": []})["shown"]
            same = next((each for each in shown if each["fields"] == form.kinds), None)
            if same is None:
                shown.append(same := {"fields": form.kinds, "pages": []})
            same["pages"] = sorted({*same["pages"], page})
    return found


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield the path of each page, and an address of it."""
    for page in PAGES:
        for query in _QUERIES.get(page.path, ("",)):
            yield from sorted({(page.path, page.path.format(**words) + query) for words in _WORDS})


def _declared(method: str, action: str) -> str:
    """Return an address with the words of the table in place of names."""
    path = action.partition("?")[0]
    paths = [form.path for form in FORMS] if method == "post" else [page.path for page in PAGES]
    # The first one that matches, as the gateway's own routes.
    return next((each for each in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), path)), path)
