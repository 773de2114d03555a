"""The server's answers on an account, a stream, a consumer, as types with our names.

`config` has the settings unchanged, since they are compared and sent back, also those unknown to this version.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec


class AccountLimits(msgspec.Struct, frozen=True):
    """The limits of an account's storage."""

    max_storage: int = -1  #: bytes on disk; -1: no limit


class AccountInfo(msgspec.Struct, frozen=True):
    """An account's use of storage."""

    storage: int = 0  #: bytes on disk
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = AccountLimits()


class StreamState(msgspec.Struct, frozen=True):
    """The content of a stream, in numbers."""

    messages: int = 0
    bytes: int = 0
    first_sequence: int = msgspec.field(
        default=0, name="first_seq"
    )  #: of the oldest message, or of the next one
    last_sequence: int = msgspec.field(default=0, name="last_seq")
    subjects: dict[str, int] | None = None  #: messages by subject, for the requested subjects


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream: its settings, its content, and the time of this answer."""

    config: dict[str, Any]
    state: StreamState
    created: str = ""  #: the server's time, nanoseconds: another stream of that name has another one
    cluster: dict[str, Any] | None = None  #: its leader and replicas; None on a server alone
    ts: str = ""  #: the server's time of this answer; "" where it tells none


class ConsumerProgress(msgspec.Struct, frozen=True):
    """A position of a consumer."""

    stream_sequence: int = msgspec.field(default=0, name="stream_seq")
    consumer_sequence: int = msgspec.field(default=0, name="consumer_seq")
    last_active: str | None = None  #: the server's time, None where it knows of none


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer: its settings and its positions."""

    name: str
    config: dict[str, Any]
    created: str = ""
    delivered: ConsumerProgress = ConsumerProgress()  #: the newest message it handed out
    ack_floor: ConsumerProgress = ConsumerProgress()  #: up to here all is acknowledged or given up
    pending: int = msgspec.field(default=0, name="num_pending")  #: never handed out
    ack_pending: int = msgspec.field(default=0, name="num_ack_pending")  #: handed out and not settled
    redelivered: int = msgspec.field(
        default=0, name="num_redelivered"
    )  #: of these, handed out more than once
    waiting: int = msgspec.field(default=0, name="num_waiting")  #: requests for messages that stand
    cluster: dict[str, Any] | None = None  #: None on a server alone
    paused: bool = False  #: somebody told the server to hand out nothing, until the setting `pause_until`

    @property
    def unsettled(self) -> int:
        """The number of messages that are not settled."""
        return self.pending + self.ack_pending

    @property
    def is_durable(self) -> bool:
        """Whether the consumer stays when it is not used."""
        return bool(self.config.get("durable_name"))

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects it delivers; (): all of its stream."""
        several = cast("list[str]", self.config.get("filter_subjects") or [])
        single = self.config.get("filter_subject")
        return tuple(several) or ((single,) if single else ())
