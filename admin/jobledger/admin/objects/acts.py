"""What came of an act on one job, as an object. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from jobledger.admin.bulk import ActResult, Result
from jobledger.ledger.model.rights.marks import PAYLOAD


class ActDone(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an act on one job, or would come of it."""

    id: str
    queue: str
    task: str
    action: str  #: `cancel`, `retry`, `reschedule`, `requeue` or `discard`
    result: (
        Result  #: refused: the job's state does not allow it; invalid: it cannot be done as it was asked for
    )
    message: str  #: why it was not done, or what is still to come
    input: Annotated[Any | msgspec.UnsetType, PAYLOAD] = (
        msgspec.UNSET
    )  #: the new input; left out if the old one stays


def act_done(verb: str, outcome: ActResult) -> ActDone:
    """Return what came of an act on one job."""
    text, ref = outcome.input_text, outcome.chosen.ref
    return ActDone(
        id=ref.job_id,
        queue=ref.queue,
        task=outcome.chosen.task,
        action=verb,
        result=outcome.result,
        message=outcome.message,
        input=msgspec.UNSET if text is None else msgspec.json.decode(text),
    )
