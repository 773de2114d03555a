"""An example of each verb: what is wished for, and what a ledger must hold before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jobledger.admin.verbs.kit import Verb
from jobledger.admin.verbs.limits import RemoveLimit, SetLimit
from jobledger.admin.verbs.queues import PauseQueue, ResumeQueue

Wish = Callable[[str], Verb[Any]]

#: A wish about something that is called `name`.
EXAMPLES: Final[Mapping[type[Verb[Any]], Wish]] = {
    PauseQueue: lambda name: PauseQueue(queue=name, reason="a deploy"),
    ResumeQueue: lambda name: ResumeQueue(queue=name),
    SetLimit: lambda name: SetLimit(limit=name, slots=3, rate=None, queues=("mail", "web")),
    RemoveLimit: lambda name: RemoveLimit(limit=name, reason="no use"),
}
#: Wishes that come before, for those that need something to be there.
BEFORE: Final[Mapping[type[Verb[Any]], tuple[Wish, ...]]] = {
    ResumeQueue: (EXAMPLES[PauseQueue],),
    RemoveLimit: (EXAMPLES[SetLimit],),
}
