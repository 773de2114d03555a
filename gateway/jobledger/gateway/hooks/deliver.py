"""`deliver`: the built-in task that posts an event to a webhook's receiver, and records failures at the webhook."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from jobledger.gateway.hooks.poster import PostAnswer, Poster
from jobledger.ledger.client import Ledger
from jobledger.ledger.context import Context
from jobledger.ledger.decorator import task
from jobledger.ledger.model.hooks.definition import Format
from jobledger.ledger.model.hooks.errors import SecretUnavailableError, WebhookNotFoundError
from jobledger.ledger.model.hooks.references import is_reference
from jobledger.ledger.model.hooks.webhook import Disable, Fail, Succeed, Webhook
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.model.times import time_text
from jobledger.ledger.outcome import Cancel, Retry
from jobledger.ledger.tasks import Task
from jobledger.ledger.webhooks.changes import change_webhook, find_webhook
from jobledger.ledger.webhooks.deliveries import ATTEMPTS_MAX, DELIVER, job_id
from jobledger.ledger.webhooks.message import EventMessage, told_of
from jobledger.ledger.webhooks.secrets import Secrets, key_of

# The signature and the form of a delivery: the standard-webhooks scheme, with a plain body or a CloudEvent. Pure.

_JSON: Final = "application/json"
_CLOUDEVENTS: Final = "application/cloudevents+json"


class Body(NamedTuple):
    """The body of a post."""

    data: bytes
    media: str


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the structured mode of CloudEvents 1.0: all of it is in the body."""

    specversion: str = "1.0"
    id: str
    source: str  #: the ledger
    type: str
    subject: str  #: the job or the watch
    time: str
    datacontenttype: str = _JSON
    data: dict[str, object]


def body_of(told: EventMessage, form: Format, *, message_id: str, source: str) -> Body:
    """Return the body to post for an event, the same bytes at every try."""
    if form == "standard":
        return Body(msgspec.json.encode(told), _JSON)
    about = told.data
    subject = f"{about['queue']}/{about['job']}" if "job" in about else str(about.get("watch", ""))
    event = CloudEvent(
        id=message_id,
        source=source,
        type=f"dev.jobledger.{told.type}",
        subject=subject,
        time=time_text(told.timestamp),
        data=about,
    )
    return Body(msgspec.json.encode(event), _CLOUDEVENTS)


def signature(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each key; a receiver needs only one of them.

    `timestamp`: seconds since 1970, when the message is sent. Source: standardwebhooks.com.
    """
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


#: Seconds to wait after each failed try: five seconds to ten hours, about 28 hours in all.
DELAYS_S: Final = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
_JITTER: Final = 0.1
#: Failures of a delivery count against its webhook from this attempt on.
_COUNTS_FROM: Final = 3
_GONE: Final = 410
_WHY_MAX: Final = 1_500
#: Words of a URL that are shorter than this are not masked in answers: they may be ordinary words.
_TOKEN_MIN: Final = 16


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a delivery."""

    status: int  #: HTTP status of the receiver's answer
    answer: str  #: the beginning of its body
    took_ms: int


class DeliverySender:
    """The sender of deliveries."""

    def __init__(self, poster: Poster, secrets: Secrets, chance: random.Random | None = None) -> None:
        self.poster = poster
        self.secrets = secrets
        self.chance = chance or random.Random()  # noqa: S311 - spreads retries

    async def deliver(self, context: Context, name: str, sequence: int) -> DeliveryResult | Cancel | Retry:
        """Post one event; return what happens to the job."""
        ledger = context.ledger
        try:
            webhook = await find_webhook(ledger.log, name)
        except WebhookNotFoundError:
            return Cancel(f"webhook {name} was removed")
        told = await _told(ledger, webhook, sequence)
        if isinstance(told, Cancel):
            return told
        began = time.monotonic()
        try:
            answered = await self._post(ledger, webhook, told, sequence or context.job_id)
        except SecretUnavailableError as error:
            answered = PostAnswer(status=0, why=str(error))
        if answered.is_received:
            if webhook.failing_since is not None and sequence:
                await change_webhook(ledger, name, Succeed())
            took_ms = round(1_000 * (time.monotonic() - began))
            return DeliveryResult(status=answered.status, answer=answered.answer, took_ms=took_ms)
        return await self._failed(context, name, answered, is_test=not sequence)

    async def _post(
        self, ledger: Ledger, webhook: Webhook, told: EventMessage, sequence: int | str
    ) -> PostAnswer:
        terms, now = webhook.definition, ledger.clock.now()
        # The id is the same at every try and redelivery of an event, so that a receiver recognises a repeat.
        message_id = job_id(webhook.name, sequence) if isinstance(sequence, int) else sequence
        source = f"/jobledger/{ledger.names.environment or 'default'}"
        body = body_of(told, terms.format, message_id=message_id, source=source)
        own = {name: self._header(name, value) for name, value in terms.headers.items()}
        signed = self._signed(webhook, message_id, body.data, now)
        headers = {**own, "content-type": body.media, **signed}
        answered = await self.poster.post(terms.target.url, body.data, headers)
        # The ledger stores answers, and more people may see them than the webhook: mask secrets in them.
        hidden = [own[name] for name, value in terms.headers.items() if is_reference(value)]
        hidden += _behind_host(terms.target.url)
        return msgspec.structs.replace(
            answered, answer=_without(answered.answer, hidden), why=_without(answered.why, hidden)
        )

    def _header(self, name: str, value: str) -> str:
        if not is_reference(value):
            return value
        found = self.secrets.read(value)
        if not found.isascii() or not found.decode().isprintable():
            raise SecretUnavailableError(f"the secret of header {name} is no line of printable ASCII")
        return found.decode()

    def _signed(self, webhook: Webhook, message_id: str, body: bytes, now: datetime) -> dict[str, str]:
        keys = [key_of(self.secrets.read(reference)) for reference in webhook.secrets(now)]
        timestamp = int(now.timestamp())
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(keys, message_id, timestamp, body),
        }

    async def _failed(
        self, context: Context, name: str, answered: PostAnswer, *, is_test: bool
    ) -> Cancel | Retry:
        """Record the failure at the webhook, and return when to try again."""
        why = answered.why + (f": {answered.answer}" if answered.answer else "")
        if is_test:
            return Retry(reason=why[:_WHY_MAX])
        if answered.status == _GONE:
            await change_webhook(context.ledger, name, Disable(why="the receiver answered 410 Gone"))
            return Cancel(f"the receiver answered 410 Gone, and webhook {name} is disabled")
        if context.attempt >= _COUNTS_FROM:
            await change_webhook(context.ledger, name, Fail(why=answered.why))
        if answered.is_unwanted:
            return Cancel(f"the receiver wants no more of this message ({answered.why})")
        return Retry(delay_s=self._delay_s(context.attempt, answered), reason=why[:_WHY_MAX])

    def _delay_s(self, attempt: int, answered: PostAnswer) -> float:
        if answered.retry_after_s is not None:
            return answered.retry_after_s
        return DELAYS_S[min(attempt, len(DELAYS_S)) - 1] * (1 + self.chance.random() * _JITTER)


def _behind_host(url: str) -> list[str]:
    """Return the parts of a URL that may be secret and that receivers repeat in refusals, the longest first."""
    parts = urlsplit(url)
    words = [*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))]
    told = [parts.path, parts.query, *(each for each in words if len(each) >= _TOKEN_MIN)]
    return sorted((each for each in told if len(each) > 1), key=len, reverse=True)


def _without(text: str, hidden: Sequence[str]) -> str:
    for each in hidden:
        text = text.replace(each, "***")
    return text


async def _told(ledger: Ledger, webhook: Webhook, sequence: int) -> EventMessage | Cancel:
    """Return the message about an event, or a test message; else the reason to cancel the delivery."""
    if not sequence:
        data: dict[str, Any] = {"webhook": webhook.name}
        return EventMessage(type="webhook.test", timestamp=ledger.clock.now(), data=data)
    if not webhook.is_active:
        return Cancel(f"webhook {webhook.name} is {webhook.status}: redeliver it once it is resumed")
    if not webhook.definition.target.url:
        return Cancel(f"webhook {webhook.name} has a task as its target by now")
    message = await ledger.log.get(sequence)
    if message is None:
        return Cancel(f"the event at stream sequence {sequence} is in an archive")
    return await told_of(ledger, message, webhook.definition.include)


def deliver_task(delivering: DeliverySender) -> Task[..., Any]:
    """Return the task for the worker of a gateway; its jobs are made by the reactor of webhooks."""

    @task(name=DELIVER, queue=DELIVERIES_QUEUE, max_attempts=ATTEMPTS_MAX)
    async def deliver(context: Context, webhook: str, sequence: int) -> DeliveryResult | Cancel | Retry:
        return await delivering.deliver(context, webhook, sequence)

    return deliver
