"""The settings of `connect`, checked before anything is sent, and those that environment variables may set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.seals import KeyHolder
from jobledger.ledger.nats.access import LOGIN_NAMES, Access, from_variables
from jobledger.ledger.nats.contexts import settings_of_context

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
#: Settings that environment variables can set if the caller does not, as with commands.
VARIABLES: Final = {
    "url": "JOBLEDGER_URL",
    "environment": "JOBLEDGER_ENVIRONMENT",
    "tables_at": "JOBLEDGER_TABLES",
    "inbox_prefix": "JOBLEDGER_INBOX_PREFIX",
    "replicas": "JOBLEDGER_REPLICAS",
    "master_key": "JOBLEDGER_MASTER_KEY",
    "seal": "JOBLEDGER_SEAL",
}
#: Names a context of the `nats` command in the place of a `url`.
CONTEXT: Final = "JOBLEDGER_CONTEXT"
_SECONDS_MAX: Final = 3600
_ROOM_TIMEOUT_S_MAX: Final = 7 * 86_400
_TABLES_LIFE_S_MIN: Final = 1
_TABLES_LIFE_S_MAX: Final = 10 * 366 * 86_400
LEDGER_BYTES_MIN: Final = 1 << 16  #: the smallest limit of a ledger
REPLICAS: Final = (1, 3, 5)  #: the possible numbers of copies of a stream
_COMMITS: Final = ("auto", "group", "pipeline")
_SEALS: Final = ("owners", "all")


class LedgerConfig(Access, frozen=True, kw_only=True):
    """One client's settings; those of `Access` are its credentials, and its means to check the server."""

    url: str = DEFAULT_URL  #: one server, or several separated by commas
    environment: str = ""  #: prefix of streams and subjects, so that several ledgers can share a server
    create: bool = True  #: create missing streams; False: raise `LedgerNotFoundError` if there is no ledger
    name: str = "jobledger"  #: the name that the server shows for this connection
    connect_timeout_s: float = 5.0  #: for the first connection; 20 s on a cluster. Later ones have no limit
    request_timeout_s: float = 5.0  #: limit of a call of an application; 20 s on a cluster
    append_timeout_s: float = 30.0  #: how long appends of workers and `enqueue_many` wait across reconnects
    inline_bytes_max: int = 64 << 10  #: larger inputs and results go to the object store
    payload_bytes_max: int = 8 << 20  #: larger inputs and results are refused
    ledger_bytes_max: int = 4 << 30  #: byte limit of a ledger created here; a full one refuses events
    room_timeout_s: float = 600.0  #: how long `enqueue_many`, and a job that enqueues, wait for room in a ledger that is nearly full
    tables_at: str = ""  #: URI of a folder or bucket (for `pyarrow.fs`) for tables of runs
    tables_life_s: float = 48 * 3600.0  #: how long tables are kept, there or in a store created here
    tables_bytes_max: int | None = (
        None  #: byte limit of a store created here; None: an eighth of the ledger's limit
    )
    lease_s: float = 15.0  #: length of leases in an environment created here
    replicas: int = 0  #: copies of each stream of a ledger created here: 1, 3 or 5; 0: 3 on a cluster, else 1
    commit: Literal["auto", "group", "pipeline"] = "auto"  #: how appends are sent; auto: the faster one here
    enqueue_in_flight_max: int = 2_048  #: appends of `enqueue_many` that wait for an answer
    prefetch_max: int = 2_048  #: events that a reader asks for at a time; fewer delay other clients less
    master_key: str = (
        ""  #: place of master keys for owners' keys: `file:PATH`, `env:NAME`, `exec:PROGRAM`; "": none
    )
    #: The jobs with sealed values: `owners`: jobs that name an owner; `all`: also the others, with the owner
    #: `ledger:default`.
    seal: Literal["owners", "all"] = "owners"
    sealing: KeyHolder | None = (
        None  #: holder of the keys of owners; None: the bucket KEYS and the master keys
    )
    tracing: bool = False  #: spans by OpenTelemetry (extra `otel`) for jobs enqueued and run here
    inbox_prefix: str = ""  #: beginning of the subjects of answers; use one per role if you use permissions
    nats_options: dict[str, Any] = msgspec.field(
        default_factory=dict[str, Any]
    )  #: more arguments for nats-py's `connect`: `tls` (a context), `tls_handshake_first`, `ping_interval`

    def __post_init__(self) -> None:
        """Check every value and how they relate.

        Raises: ConfigurationError.
        """
        super().__post_init__()
        url: object = getattr(self, "url")  # noqa: B009 - whatever the caller gave
        _require(isinstance(url, str), "url must be one text: several servers are separated by commas in it")
        for name in ("connect_timeout_s", "request_timeout_s", "append_timeout_s", "lease_s"):
            value: object = getattr(self, name)
            _require(
                isinstance(value, int | float) and 0 < value <= _SECONDS_MAX,
                f"{name} must be a number of seconds above 0 and at most 3600, got {value!r}",
            )
        _require(
            0 <= self.room_timeout_s <= _ROOM_TIMEOUT_S_MAX,
            f"room_timeout_s must be 0 to {_ROOM_TIMEOUT_S_MAX} seconds, got {self.room_timeout_s!r}",
        )
        _require(self.lease_s >= 1, f"lease_s must be at least 1, got {self.lease_s!r}")
        _require(
            1 <= self.inline_bytes_max <= 512 << 10,
            f"inline_bytes_max must be 1 to 524288 (an event must fit the server's max_payload), got {self.inline_bytes_max!r}",
        )
        _require(
            self.inline_bytes_max <= self.payload_bytes_max <= 1 << 30,
            f"payload_bytes_max must be from inline_bytes_max to 1 GiB, got {self.payload_bytes_max!r}",
        )
        _require(
            self.ledger_bytes_max >= LEDGER_BYTES_MIN,
            f"ledger_bytes_max must be at least {LEDGER_BYTES_MIN}, got {self.ledger_bytes_max!r}",
        )
        _require(
            _TABLES_LIFE_S_MIN <= self.tables_life_s <= _TABLES_LIFE_S_MAX,
            f"tables_life_s must be from {_TABLES_LIFE_S_MIN} to {_TABLES_LIFE_S_MAX} seconds, got {self.tables_life_s!r}",
        )
        _require(
            self.tables_bytes_max is None or self.tables_bytes_max >= 1 << 20,
            f"tables_bytes_max must be at least 1048576, got {self.tables_bytes_max!r}",
        )
        _require(self.replicas in (0, *REPLICAS), f"replicas must be 1, 3 or 5, got {self.replicas!r}")
        _require(self.seal in _SEALS, f"seal must be owners or all, got {self.seal!r}")
        _require(
            not (self.sealing and self.master_key),
            "master_key and sealing are given: each has the keys of owners, leave one of them out",
        )
        _require(self.commit in _COMMITS, f"commit must be one of {', '.join(_COMMITS)}, got {self.commit!r}")
        for name in ("enqueue_in_flight_max", "prefetch_max"):
            count: object = getattr(self, name)
            _require(
                isinstance(count, int) and 1 <= count <= 1 << 16,
                f"{name} must be 1 to 65536, got {count!r}",
            )

    def for_another_process(self) -> dict[str, Any] | None:
        """Return the settings for `connect` in another process, as JSON values; None if JSON cannot hold them."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        try:
            values: dict[str, Any] = msgspec.to_builtins(given, enc_hook=_path_text)
        except (NotImplementedError, TypeError):
            return None
        if values["nats_options"] != self.nats_options:  # such as bytes, which came out as another text
            return None
        return values | {"create": False}


def _path_text(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    # msgspec expects this error for a type that a hook does not know.
    raise NotImplementedError(type(value).__name__)


def with_variables(settings: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the given settings, and those of environment variables for the others.

    Credentials and certificates of the environment are for its own server: they count only if neither `url` nor
    `context` is given. A context is replaced by the settings in its file, since it is no field of `LedgerConfig`.

    Raises: ConfigurationError for a context together with an address, or for a missing context.
    """
    given = dict(settings)
    named = given.pop("context", None)
    said: dict[str, Any] = {
        name: value for name, variable in VARIABLES.items() if (value := variables.get(variable, ""))
    }
    if (count := said.get("replicas")) is not None:
        _require(count in map(str, REPLICAS), f"{VARIABLES['replicas']} must be 1, 3 or 5, got {count!r}")
        said["replicas"] = int(count)
    if named is not None:
        _require("url" not in given, "context and url are given: each names a server, leave one of them out")
        said.pop("url", None)
        return settings_of_context(named, variables) | said | given
    if "url" in given:
        return said | given
    if of_environment := variables.get(CONTEXT):
        _require(
            "url" not in said,
            f"{VARIABLES['url']} and {CONTEXT} are set: each names a server, unset one of them",
        )
        said = settings_of_context(of_environment, variables) | said
    return said | from_variables(variables, login=not LOGIN_NAMES & given.keys()) | given


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - reads as the condition it is
    if not holds:
        raise ConfigurationError(sentence)
