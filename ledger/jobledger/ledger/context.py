"""What a running task can know of itself: `Context`, handed to a parameter of that type."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt a task is running in.

    A task that wants it has a parameter annotated `Context` (first, by custom); it is not part of the input.
    """

    job_id: str
    queue: str
    task: str
    attempt: int  #: 1 for the first run
    worker: str
    deadline: datetime | None  #: when the attempt times out, by the worker's clock; None: never
    logger: logging.LoggerAdapter[Any]  #: bound to job and attempt
