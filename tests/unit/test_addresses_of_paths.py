"""Addresses with words in braces: which one a path means, and what it says for the braces."""

from __future__ import annotations

import pytest
from tests.support.tables import each_row

from jobledger.gateway.http.router import Addresses

DECLARED = (
    "/v1/jobs",
    "/v1/jobs/bulk",
    "/v1/jobs/{id}",
    "/v1/jobs/{queue}/{id}",
    "/v1/jobs/{queue}/{id}/events",
    "/v1/{kind}/bulk/last",
)


@each_row(
    "path, address, taken",
    [
        ("/v1/jobs", "/v1/jobs", {}),
        ("/v1/jobs/bulk", "/v1/jobs/bulk", {}),
        ("/v1/jobs/a", "/v1/jobs/{id}", {"id": "a"}),
        ("/v1/jobs/bulk/a", "/v1/jobs/{queue}/{id}", {"queue": "bulk", "id": "a"}),
        ("/v1/jobs/a/b/events", "/v1/jobs/{queue}/{id}/events", {"queue": "a", "id": "b"}),
        # The words `jobs` lead nowhere here, so the braces are tried.
        ("/v1/keys/bulk/last", "/v1/{kind}/bulk/last", {"kind": "keys"}),
        ("/v1/jobs/bulk/last", "/v1/jobs/{queue}/{id}", {"queue": "bulk", "id": "last"}),
        ("/v1/jobs/", None, {}),
        ("/v1/jobs//b", None, {}),
        ("/v1/jobs/a/b/c", None, {}),
        ("/v1/jobs\n", None, {}),
        ("v1/jobs", None, {}),
        ("/", None, {}),
        ("", None, {}),
        ("/" * 10_000, None, {}),
    ],
)
def test_a_path_means_one_address_and_words_come_before_braces(
    path: str, address: str | None, taken: dict[str, str]
) -> None:
    addresses: Addresses[str] = Addresses()
    for each in reversed(DECLARED):
        addresses.add(each, each)
    assert addresses.find(path) == (None if address is None else (address, taken))


def test_one_address_is_not_declared_twice() -> None:
    addresses: Addresses[int] = Addresses()
    addresses.add("/v1/jobs/{id}", 1)
    with pytest.raises(AssertionError, match="there already"):
        addresses.add("/v1/jobs/{job}", 2)
