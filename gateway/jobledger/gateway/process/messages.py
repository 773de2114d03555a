"""What a gateway, or `up`, and its child processes say to each other; messages of all child processes are in `workers.processes.messages`.

When the line ends, the other side is gone. A child then ends, and removes what it made.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import Fault, LogLine, Ready


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message to a child: what it works on."""

    connection: dict[str, Any]  #: settings of `connect`
    projection: str  #: the file
    log_level: int  #: of the loggers of jobledger
    allow_targets: tuple[str, ...] = ()  #: networks that deliveries may go to, beside the public internet
    key_file: str = ""  #: what unseals secrets; "": nothing does
    archive: str = ""  #: the folder where old events go if the setting names none; "": nowhere
    clears: bool = False  #: large values are to be deleted that nothing names, instead of events moved


class KeeperReport(msgspec.Struct, frozen=True, kw_only=True, tag="keeper_report"):
    """The keeper has looked once: what it moved, and what kept it from more."""

    moved: MoveOutcome


class Want(msgspec.Struct, frozen=True, kw_only=True, tag="want"):
    """Make the rows as of a past moment."""

    stream_sequence: int


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, tag="give_back"):
    """A file that was lent is not read any more."""

    path: str


class Lent(msgspec.Struct, frozen=True, kw_only=True, tag="lent"):
    """The rows of a past moment are in a file, until it is given back."""

    stream_sequence: int
    path: str


class NotLent(msgspec.Struct, frozen=True, kw_only=True, tag="not_lent"):
    """They could not be made."""

    stream_sequence: int
    sentence: str
    reason: Literal["server", "rows"]  #: who is to blame: a server that does not answer, or what is stored


ToChild = Setup | Want | GiveBack
FromChild = Ready | Fault | LogLine | KeeperReport | Lent | NotLent
TO_CHILD: Final[msgspec.json.Decoder[ToChild]] = msgspec.json.Decoder(ToChild)
FROM_CHILD: Final[msgspec.json.Decoder[FromChild]] = msgspec.json.Decoder(FromChild)
#: The line of a child to who started it.
ToGateway = Line[ToChild]
