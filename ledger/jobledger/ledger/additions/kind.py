"""What adding a job asks of its task: the task with its code at hand, or as a worker announced it."""

from __future__ import annotations

from typing import Any

from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.tasks import Task

Kind = Task[Any, Any] | AnnouncedTask
