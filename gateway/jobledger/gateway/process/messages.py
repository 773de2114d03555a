"""Messages of a gateway (or `up`) and its children; `workers.processes.messages` has those of all child processes.

When the line ends, the other side is gone. A child then ends, and removes its files.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import Fault, LogLine, Ready


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message to a child: the settings of its work."""

    connection: dict[str, Any]  #: settings of `connect`
    projection: str  #: file of the projection
    log_level: int  #: level of jobledger's loggers
    allow_targets: tuple[str, ...] = ()  #: networks that deliveries may go to, beside the public internet
    key_file: str = ""  #: file of the key that unseals secrets; "": none
    archive: str = ""  #: the folder where old events go if the setting names none; "": nowhere
    clears: bool = False  #: True: delete large values that no event names, instead of moving events


class KeeperReport(msgspec.Struct, frozen=True, kw_only=True, tag="keeper_report"):
    """A report after one look of the keeper: what it moved, and why not more."""

    moved: MoveOutcome


class Want(msgspec.Struct, frozen=True, kw_only=True, tag="want"):
    """A request for the rows as of a past moment."""

    stream_sequence: int


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, tag="give_back"):
    """The return of a file that was lent."""

    path: str


class Lent(msgspec.Struct, frozen=True, kw_only=True, tag="lent"):
    """The file with the rows of a past moment; it exists until it is given back."""

    stream_sequence: int
    path: str


class NotLent(msgspec.Struct, frozen=True, kw_only=True, tag="not_lent"):
    """The rows of a past moment could not be made."""

    stream_sequence: int
    sentence: str
    reason: Literal["server", "rows"]  #: cause: a server that does not answer, or the stored rows


ToChild = Setup | Want | GiveBack
FromChild = Ready | Fault | LogLine | KeeperReport | Lent | NotLent
TO_CHILD: Final[msgspec.json.Decoder[ToChild]] = msgspec.json.Decoder(ToChild)
FROM_CHILD: Final[msgspec.json.Decoder[FromChild]] = msgspec.json.Decoder(FromChild)
#: The line of a child to its parent process.
ToGateway = Line[ToChild]
