"""An example of each verb: what is wished for, and what a ledger must hold before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jobledger.admin.verbs.jobs import (
    CancelJob,
    DiscardJob,
    NoteJob,
    PauseJob,
    RequeueJob,
    RescheduleJob,
    ResumeJob,
    RetryJob,
)
from jobledger.admin.verbs.kit import Verb
from jobledger.admin.verbs.limits import RemoveLimit, SetLimit
from jobledger.admin.verbs.queues import PauseQueue, ResumeQueue
from jobledger.admin.verbs.watches import ListWatches, RemoveWatch, SetWatch, ShowWatch

_LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)
#: Of these an example needs a job of its name that is a dead letter; of the others on jobs, one that is scheduled.
OF_DEAD_LETTERS: Final = (RequeueJob, DiscardJob)
Wish = Callable[[str], Verb[Any]]

#: A wish about something that is called `name`.
EXAMPLES: Final[Mapping[type[Verb[Any]], Wish]] = {
    CancelJob: lambda name: CancelJob(id=name, queue="mail", reason="no use"),
    RetryJob: lambda name: RetryJob(id=name, queue="mail"),
    RescheduleJob: lambda name: RescheduleJob(id=name, queue="mail", run_at=_LATER),
    PauseJob: lambda name: PauseJob(id=name, queue="mail", reason="a deploy"),
    ResumeJob: lambda name: ResumeJob(id=name, queue="mail"),
    RequeueJob: lambda name: RequeueJob(id=name, queue="mail", attempts=2, edit={"to": "bea"}),
    DiscardJob: lambda name: DiscardJob(id=name, queue="mail", reason="no use"),
    NoteJob: lambda name: NoteJob(id=name, queue="mail", text="seen"),
    PauseQueue: lambda name: PauseQueue(queue=name, reason="a deploy"),
    ResumeQueue: lambda name: ResumeQueue(queue=name),
    SetLimit: lambda name: SetLimit(limit=name, slots=3, rate=None, queues=("mail", "web")),
    RemoveLimit: lambda name: RemoveLimit(limit=name, reason="no use"),
    SetWatch: lambda name: SetWatch(name=name, figure="error_rate", above=0.5, for_s=60.0, window_s=600),
    RemoveWatch: lambda name: RemoveWatch(name=name, reason="no use"),
    ListWatches: lambda _: ListWatches(),
    ShowWatch: lambda name: ShowWatch(name=name),
}
#: Wishes that come before, for those that need something to be there.
BEFORE: Final[Mapping[type[Verb[Any]], tuple[Wish, ...]]] = {
    ResumeJob: (EXAMPLES[PauseJob],),
    ResumeQueue: (EXAMPLES[PauseQueue],),
    RemoveLimit: (EXAMPLES[SetLimit],),
    RemoveWatch: (EXAMPLES[SetWatch],),
    ListWatches: (lambda _: EXAMPLES[SetWatch]("one"),),
    ShowWatch: (EXAMPLES[SetWatch],),
}
