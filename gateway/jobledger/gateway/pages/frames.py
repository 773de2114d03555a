"""A traceback as frames, each marked as user code or library, so that libraries can be folded. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_FRAME: Final = re.compile(
    r'^ *(?:\| *)?File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>[^\n]{1,200})$'
)
_CARETS: Final = re.compile(r"^[ |]*[\^~]+ *$")
_BETWEEN: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "\\lib\\", "<frozen ")
_OURS: Final = re.compile(r"/jobledger/(ledger|workers|admin|gateway|projections|audit|testing)/")
_FILE_SHOWN: Final = 3  #: parts of a path that are shown


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One call."""

    file: str  #: the end of its path
    path: str  #: its whole path
    line: int
    function: str
    code: str
    own: bool  #: True for code neither of a library nor of jobledger


class FrameFold(msgspec.Struct, frozen=True, kw_only=True):
    """Successive calls that are all in user code, or all in other code."""

    own: bool
    frames: tuple[Frame, ...]
    names: str  #: libraries of the calls: `httpx, anyio`


class RaisedError(msgspec.Struct, frozen=True, kw_only=True):
    """One exception of a traceback; the last one in the text made the attempt fail."""

    groups: tuple[FrameFold, ...]
    end: str  #: the lines after its frames: type and message
    how: str = ""  #: how it led to the next exception in the text, "" for the last one


def read_traceback(text: str) -> list[RaisedError]:
    """Return the exceptions of a traceback, the one that was raised last first; [] if it is not a Python traceback."""
    found: list[RaisedError] = []
    frames: list[Frame] = []
    end: list[str] = []
    for line in text.splitlines():
        between = next((each for each in _BETWEEN if each in line), "")
        frame = _FRAME.match(line)
        if between:
            found.append(_raised(frames, end, between))
            frames, end = [], []
        elif frame is not None:
            frames.append(_frame(frame["file"], int(frame["line"]), frame["function"]))
        elif frames and not end and line.startswith("    ") and not frames[-1].code:
            frames[-1] = msgspec.structs.replace(frames[-1], code=line.strip(" |"))
        elif (
            line.strip()
            and not _CARETS.match(line)
            and not line.startswith("Traceback ")
            and not line.startswith("    ")
        ):
            end.append(line)
    if frames or end:
        found.append(_raised(frames, end, ""))
    return list(reversed(found)) if any(each.groups for each in found) else []


def _frame(path: str, line: int, function: str) -> Frame:
    own = not any(part in path for part in _LIBRARIES) and _OURS.search(path) is None
    short = "/".join(path.replace("\\", "/").split("/")[-_FILE_SHOWN:])
    return Frame(file=short, path=path, line=line, function=function, code="", own=own)


def _raised(frames: list[Frame], end: list[str], how: str) -> RaisedError:
    groups: list[list[Frame]] = []
    for frame in frames:
        if groups and groups[-1][-1].own == frame.own:
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return RaisedError(
        groups=tuple(
            FrameFold(
                own=each[0].own, frames=tuple(each), names=", ".join(dict.fromkeys(map(_library, each)))
            )
            for each in groups
        ),
        end="\n".join(end),
        how=how.rstrip(":"),
    )


def _library(frame: Frame) -> str:
    for part in ("/site-packages/", "/dist-packages/"):
        if part in frame.path:
            return frame.path.partition(part)[2].partition("/")[0].removesuffix(".py")
    return "jobledger" if _OURS.search(frame.path) else "python"
