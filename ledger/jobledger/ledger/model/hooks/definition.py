"""The definition of a webhook (its events, its target, the content of its messages), and the check of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import EVENT_TYPES
from jobledger.ledger.model.hooks.places import address_in, is_public
from jobledger.ledger.model.hooks.references import check_reference, is_reference
from jobledger.ledger.model.rights.marks import SECRET_HEADERS, SECRET_URL, host_of
from jobledger.ledger.model.subjects import check_token, check_users_queue, check_users_task

#: Further content of a message beside the event: the job's input, its result, its error.
Part = Literal["input", "result", "error"]
Format = Literal["standard", "cloudevents"]
Headers = Annotated[Mapping[str, str], SECRET_HEADERS]

#: Names of webhooks; in the id of a delivery the event's sequence and the number of the repetition follow the name.
NAME_MAX: Final = 32
#: Events of watches that a webhook may ask for, beside those of jobs.
WATCH_EVENTS: Final = ("watch.firing", "watch.resolved")
PARTS: Final[tuple[Part, ...]] = ("input", "result", "error")
FORMATS: Final[tuple[Format, ...]] = ("standard", "cloudevents")
SECRETS_MAX: Final = 2
_URL_MAX: Final = 2_000
_HEADERS_MAX: Final = 16
_HEADER_VALUE_MAX: Final = 1_024
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", flags=re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
#: Headers that a delivery has anyway, or that would change how its body is read.
_OWN_HEADERS: Final = frozenset({
    "connection", "content-length", "content-type", "expect", "host", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where events go: either posted to a URL, or as the input of a new job."""

    url: Annotated[str, SECRET_URL] = ""  #: where each event is posted; "": nowhere
    task: str = ""  #: the task that gets a job for each event; "": none
    queue: str = ""  #: the queue of those jobs; "" with a URL


class WebhookDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a webhook does."""

    target: WebhookTarget  #: where its events go
    events: tuple[str, ...] = ()  #: types of events of jobs and watches, sorted
    queue: str = ""  #: only events of jobs in this queue; "": in all
    task: str = ""  #: only events of jobs of this task; "": of all
    job: str = ""  #: only events of jobs of this id; "": of all
    secrets: tuple[str, ...] = ()  #: references to the secrets that sign messages, the newest first
    old_secret_until: Moment | None = None  #: until when the second secret signs, too; none: without an end
    include: tuple[Part, ...] = ()  #: further content of a message beside the event
    format: Format = "standard"  #: the form of a message
    headers: Headers = {}  #: more headers of each message; a value may be a reference to a secret
    allow_http: bool = False  #: whether the URL may be without encryption
    allow_private: bool = False  #: whether the URL may name an address outside the public internet


def checked_definition(given: WebhookDefinition) -> WebhookDefinition:
    """Return a definition in the form that is stored, its lists sorted and each word once.

    Raises: InvalidInputError, InvalidTokenError for a definition that cannot work.
    """
    for part in given.include:
        _one_of("include", part, PARTS)
    _one_of("format", given.format, FORMATS)
    found = msgspec.structs.replace(
        given,
        events=_events(given),
        include=tuple(sorted(set(given.include))),
        target=_target(given),
    )
    for field in ("queue", "task", "job"):
        if getattr(found, field):
            check_token(
                {"queue": "queue", "task": "task name", "job": "job id"}[field], getattr(found, field)
            )
    _check_secrets(found)
    _check_headers(found.headers)
    return found


def check_webhook_name(name: str) -> str:
    """Return the name of a webhook if it can be one. Raises: InvalidTokenError, InvalidInputError for a longer one."""
    check_token("webhook name", name)
    if len(name) > NAME_MAX:
        raise InvalidInputError(f"webhook name {name!r} has {len(name)} characters: give at most {NAME_MAX}")
    return name


def _one_of(field: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InvalidInputError(
            f"{field} must be {', '.join(words[:-1])} or {words[-1]}, got {str(value)[:60]!r}"
        )


def _events(given: WebhookDefinition) -> tuple[str, ...]:
    known = (*EVENT_TYPES, *WATCH_EVENTS)
    for event in given.events:
        if event not in known:
            raise InvalidInputError(f"there is no event {event[:60]!r}; the events: {', '.join(known)}")
    if not given.events:
        raise InvalidInputError("a webhook needs at least one type of event, such as completed")
    if any(event in WATCH_EVENTS for event in given.events) and (given.task or given.job):
        raise InvalidInputError("events of watches have no task and no job: make a webhook of their own")
    return tuple(sorted(set(given.events)))


def _target(given: WebhookDefinition) -> WebhookTarget:
    target = given.target
    if bool(target.url) == bool(target.task):
        raise InvalidInputError("a webhook has one target: give a URL, or a task, and not both")
    if target.url:
        if target.queue:
            raise InvalidInputError("a URL has no queue: give a queue only with a task")
        _check_url(target.url, given)
        return target
    check_users_task(target.task)
    queue = check_users_queue(target.queue or "default")
    if given.task in {"", target.task} and given.queue in {"", queue} and _is_of_jobs(given):
        raise InvalidInputError(
            f"events of the jobs that this webhook makes, of task {target.task} in queue {queue}, would match it again "
            "without end: name the task or the queue whose events it is for"
        )
    return msgspec.structs.replace(target, queue=queue)


def _is_of_jobs(given: WebhookDefinition) -> bool:
    return any(event not in WATCH_EVENTS for event in given.events)


def _check_url(url: str, given: WebhookDefinition) -> None:
    parts = _split(url)
    if parts is None or not parts.hostname or parts.scheme not in {"https", "http"}:
        raise InvalidInputError(
            f"{url[:60]!r} is no URL of the web: give one such as https://example.com/hooks"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError(
            "the URL holds a user or a password, which would stay in the ledger: give a header that refers to a secret"
        )
    if parts.fragment:
        raise InvalidInputError("the URL has a fragment (#...), which is never sent: leave it out")
    if parts.scheme == "http" and not given.allow_http:
        raise InvalidInputError(
            f"{url[:60]!r} is not encrypted: give an https URL, or allow http for this webhook (allow_http)"
        )
    address = address_in(parts.hostname)
    if address is not None and not given.allow_private and not is_public(address):
        raise InvalidInputError(
            f"the URL goes to {address}, which is not an address of the public internet: give another one, or allow "
            "private addresses for this webhook (allow_private), and this network for the gateway "
            "(JOBLEDGER_ALLOW_TARGET)"
        )


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, None for one that no client could request."""
    if len(url) > _URL_MAX or not url.isascii() or any(not " " < each < "\x7f" for each in url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return parts if port is None or port > 0 else None


def _check_secrets(given: WebhookDefinition) -> None:
    if len(given.secrets) > SECRETS_MAX:
        raise InvalidInputError(
            f"{len(given.secrets)} secrets are given: at most {SECRETS_MAX} sign a message"
        )
    for reference in given.secrets:
        check_reference("the secret", reference)
    if given.target.url and not given.secrets:
        raise InvalidInputError(
            "messages are signed: name the secret to sign with, as env:NAME or file:/path"
        )
    if given.target.task and given.secrets:
        raise InvalidInputError("a job is not signed: leave the secret out")


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > _HEADERS_MAX:
        raise InvalidInputError(f"{len(headers)} headers are given: at most {_HEADERS_MAX} are sent")
    for name, value in headers.items():
        if _HEADER.fullmatch(name) is None:
            raise InvalidInputError(f"{name[:60]!r} is no name of a header")
        if name.lower() in _OWN_HEADERS or name.lower().startswith(("webhook-", "ce-")):
            raise InvalidInputError(f"header {name} is set by the delivery itself: leave it out")
        is_text = len(value) <= _HEADER_VALUE_MAX and _HEADER_VALUE.fullmatch(value) is not None
        if not is_text and not is_reference(value):
            raise InvalidInputError(
                f"the value of header {name} must be at most {_HEADER_VALUE_MAX:,} printable ASCII characters"
            )


def target_words(target: WebhookTarget) -> str:
    """Return where events go, for a person. Of a URL only the host is shown: the rest may be a secret."""
    if target.url:
        return host_of(target.url)
    return f"task {target.task} in queue {target.queue}"


def filter_words(definition: WebhookDefinition) -> str:
    """Return which events match, for a person: `completed, failed of queue billing`."""
    parts = [
        f"{name} {value}"
        for name, value in (("queue", definition.queue), ("task", definition.task), ("job", definition.job))
        if value
    ]
    return ", ".join(definition.events) + (f" of {', '.join(parts)}" if parts else "")
