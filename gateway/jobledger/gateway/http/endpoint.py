"""One endpoint, declared once: address, permission, parameters and answer. Routes and documents are made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.http.headers import Header
from jobledger.ledger.model.rights.grants import Permission

Method = Literal["GET", "POST", "PUT", "DELETE"]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table of endpoints."""

    method: Method  #: GET answers HEAD too, unless `has_head` is False
    path: str  #: `/v1/jobs/{queue}/{id}`: words in braces are given to the handler by name
    permission: Permission | None  #: None: every identified caller may ask
    handler: Callable[
        ..., Awaitable[Any]
    ]  #: async (asked, path words..., query=, body=) -> a value of type `returns`
    summary: str  #: one sentence
    tag: str  #: the group of endpoints it belongs to
    returns: Any = None  #: type of the answer; None: it has no body
    status: int = 200
    also: tuple[int, ...] = ()  #: other statuses of success, with the same type
    query: type[msgspec.Struct] | None = None  #: parameters behind the `?`; others are refused
    body: Any = None  #: type of the JSON body; None: there is none, or the handler reads it in parts
    heeds: tuple[Header, ...] = ()  #: headers that change its behaviour; `ApiRequest` refuses to read others
    takes: str = JSON  #: media type of the body; if it is not JSON, the handler reads the parts
    gives: str = JSON  #: media type of the answer
    problems: tuple[str, ...] = ()  #: problem codes beside those of every endpoint
    has_head: bool = True  #: False for a GET that acts: HEAD must not act
    public: bool = False  #: needs no identity: the handler itself checks the request, as by a signature

    @property
    def needs_body(self) -> bool:
        """Whether a request without a body is refused; else no body means a body without fields.

        An act needs no body if every field has a default. A PUT always needs one, as it carries the new content.
        """
        if self.body is None:
            return self.takes != JSON
        body = self.body
        if self.method == "PUT" or not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
            return True
        return any(each.required for each in fields_of(body))


def endpoint_maker(tag: str, *, under: str = "", **usual: Any) -> Callable[..., Endpoint]:
    """Return a function that declares endpoints of one group, whose paths begin with `under`.

    `usual`: fields of each endpoint that gives no others.
    """

    def make(method: Method, path: str, handler: Any, summary: str, returns: Any, **more: Any) -> Endpoint:
        given: dict[str, Any] = {"tag": tag, **usual, **more}
        return Endpoint(
            method=method, path=under + path, handler=handler, summary=summary, returns=returns, **given
        )

    return make


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with more than a value: a status, headers or a version."""

    value: Any = None
    status: int | None = None  #: None: the endpoint's own status
    headers: Mapping[str, str] = {}
    #: The newest sequence in the answer. A GET that sets it must heed `If-None-Match`, which is compared with it.
    etag: str | None = None


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """An answer whose bytes exist already."""

    data: bytes
    media: str = JSON
    status: int = 200
    headers: Mapping[str, str] = {}


class StreamedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is sent part by part, as fast as the reader takes the parts."""

    parts: AsyncIterator[bytes]
    media: str = NDJSON
    headers: Mapping[str, str] = {}
