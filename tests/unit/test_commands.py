"""`decide` as a table: a line for each command, a column for each state, what follows or which refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.audit.verify.rules import early
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Command,
    Complete,
    CompleteStep,
    ConfirmCancel,
    CopyEnds,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    FailStep,
    Fence,
    GiveSignal,
    Interrupt,
    Join,
    Note,
    Outcome,
    Pause,
    PutBack,
    RefuseSignal,
    ReportProgress,
    RequestPause,
    Requeue,
    Reschedule,
    Rescue,
    ResumeJob,
    Snooze,
    Stamp,
    StartStep,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide, outcome_type, retry_command
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobExistsError,
    JobNotFoundError,
    LedgerError,
    StaleClaimError,
)
from jobledger.ledger.model.events import (
    Cancelled,
    DeadLettered,
    ErrorInfo,
    Failed,
    JobEvent,
    Order,
    PayloadRef,
    Queued,
    Scheduled,
    Started,
    event_type,
    order_at_first,
)
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.runs.orders import Callback, CopiedEnds, Member, RerunOf
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.transitions import violation

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
STAMP = Stamp(at=NOW, by="host-1-abc")
REF = JobRef(queue="email", job_id="j1")
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
EPOCH = 2  # of the first `started` after one `queued`

NEW = Enqueue(ref=REF, task="send", order=Order(max_attempts=3))
CLAIM = Claim(worker="w1", lease_s=15.0)
COMPLETE = Complete(epoch=EPOCH, result=msgspec.Raw(b"1"))
FAIL_LATER = Fail(epoch=EPOCH, error=BOOM, retry_at=LATER)
GIVE_UP = Fail(epoch=EPOCH, error=BOOM, give_up="rejected")
FENCE = Fence(epoch=EPOCH, attempt=1, worker="w1", outcome="completed")

#: How a job gets into each state, in commands.
JOURNEYS: dict[JobState, tuple[Command, ...]] = {
    JobState.SCHEDULED: (Enqueue(ref=REF, task="send", run_at=LATER),),
    JobState.HELD: (Enqueue(ref=REF, task="send", order=Order(limits=("api",))),),
    JobState.QUEUED: (NEW,),
    JobState.RUNNING: (NEW, CLAIM),
    JobState.RETRY_WAIT: (NEW, CLAIM, FAIL_LATER),
    JobState.WAITING: (NEW, CLAIM, Pause(epoch=EPOCH, event="paid")),
    JobState.PAUSED: (NEW, CLAIM, RequestPause(reason="why"), Pause(epoch=EPOCH, event="paid")),
    JobState.COMPLETED: (NEW, CLAIM, COMPLETE),
    JobState.CANCELLED: (NEW, CLAIM, ConfirmCancel(epoch=EPOCH)),
    JobState.DEAD_LETTERED: (NEW, CLAIM, GIVE_UP),
    JobState.DISCARDED: (NEW, CLAIM, GIVE_UP, Discard()),
}


def grow(*commands: Command) -> Job:
    """The job after `commands`, its events stored at stream sequences 1, 2, ...; none breaks the table."""
    job: Job | None = None
    for command in commands:
        for event in decide(job, command, STAMP):
            assert violation(job, event) is None
            job = evolve(job, event, 1 if job is None else job.last_sequence + 1)
    assert job is not None
    return job


JOBS: dict[JobState | None, Job | None] = {
    None: None,
    **{state: grow(*way) for state, way in JOURNEYS.items()},
}

COMMANDS: dict[str, Command] = {
    "enqueue": NEW,
    "enqueue_later": JOURNEYS[JobState.SCHEDULED][0],
    "enqueue_held": JOURNEYS[JobState.HELD][0],
    "dispatch_due": Dispatch(cause="due"),
    "dispatch_admitted": Dispatch(cause="admitted", grant=1),
    "dispatch_retried": Dispatch(cause="retried"),
    "dispatch_resumed": Dispatch(cause="resumed"),
    "redispatch": Dispatch(cause="redispatched"),
    "dispatch_new": Dispatch(cause="new"),
    "dispatch_requeued": Dispatch(cause="requeued"),
    "dispatch_carried": Dispatch(cause="carried"),
    "dispatch_ungranted": Dispatch(cause="ungranted"),
    "admit_by_none": Dispatch(cause="admitted"),
    "put_back": PutBack(asked_by=1),
    "reschedule": Reschedule(run_at=LATER),
    "claim": CLAIM,
    "take_over": TakeOver(worker="w2", lease_s=15.0, lost_epoch=EPOCH),
    "take_over_stale": TakeOver(worker="w2", lease_s=15.0, lost_epoch=1),
    "rescue": Rescue(lost_epoch=EPOCH),
    "rescue_stale": Rescue(lost_epoch=1),
    "complete": COMPLETE,
    "complete_unheld": Complete(epoch=0),
    "fail_at_once": Fail(epoch=EPOCH, error=BOOM),
    "fail_later": FAIL_LATER,
    "fail_for_good": GIVE_UP,
    "interrupt": Interrupt(epoch=EPOCH, reason="deploy"),
    "snooze": Snooze(epoch=EPOCH, until=LATER),
    "pause": Pause(epoch=EPOCH, until=LATER),
    "confirm_cancel": ConfirmCancel(epoch=EPOCH),
    "checkpoint": Checkpoint(epoch=EPOCH, value=msgspec.Raw(b"2")),
    "progress": ReportProgress(epoch=EPOCH, done=1),
    "cancel": CancelJob(reason="no"),
    "dead_letter": DeadLetter(reason="max_deliver"),
    "dead_letter_running": DeadLetter(reason="max_deliver", epoch=EPOCH),
    "requeue": Requeue(),
    "discard": Discard(),
    "fence": FENCE,
    "fence_unknown": Fence(epoch=99, attempt=1, worker="w9", outcome="completed"),
    "carry": Carry(through=99),
    "carry_less": Carry(through=0),
    "start_step": StartStep(epoch=EPOCH, step="a", kind="step", target="f"),
    "complete_step": CompleteStep(epoch=EPOCH, step="a", kind="step", target="f"),
    "fail_step": FailStep(epoch=EPOCH, step="a", kind="step", target="f", error=BOOM),
    "refuse_signal": RefuseSignal(epoch=EPOCH, step="a", name="paid", signal=1, reason="no int"),
    "copy_ends": CopyEnds(
        epoch=EPOCH,
        step="a",
        completed=((0, 0),),
        copied=CopiedEnds(queue="q", job="j", number=1, asked=1, sequences=(2,), sha256=("0",)),
    ),
    "join": Join(step="a", completed=((0, 0),)),
    "signal": GiveSignal(name="paid"),
    "request_pause": RequestPause(reason="deploy"),
    "note": Note(text="seen"),
    "resume": ResumeJob(),
}

REFUSALS = {"?": JobNotFoundError, "=": JobExistsError, "-": IllegalTransitionError, "!": StaleClaimError}

#: Events by their first letters, or the sign of a refusal (above).
TABLE = """
                    none scheduled held queued running   retry_wait waiting paused completed cancelled dead_lettered discarded
enqueue             queu =         =    =      =         =          =       =      =         =         =             =
enqueue_later       sche =         =    =      =         =          =       =      =         =         =             =
enqueue_held        held =         =    =      =         =          =       =      =         =         =             =
dispatch_due        ?    queu      -    -      -         queu       queu    -      -         -         -             -
dispatch_admitted   ?    -         queu -      -         -          -       -      -         -         -             -
dispatch_retried    ?    -         -    -      -         queu       -       -      -         -         -             -
dispatch_resumed    ?    -         -    -      -         -          queu    -      -         -         -             -
redispatch          ?    -         -    queu   -         -          -       -      -         -         -             -
dispatch_new        ?    -         -    -      -         -          -       -      -         -         -             -
dispatch_requeued   ?    -         -    -      -         -          -       -      -         -         -             -
dispatch_carried    ?    -         -    -      -         -          -       -      -         -         -             -
dispatch_ungranted  ?    -         -    -      -         -          -       -      -         -         -             -
admit_by_none       ?    -         -    -      -         -          -       -      -         -         -             -
put_back            ?    -         -    -      -         -          -       -      -         -         -             -
reschedule          ?    sche      -    -      -         sche       -       -      -         -         -             -
claim               ?    -         -    star   -         -          -       -      -         -         -             -
take_over           ?    -         -    -      lost+star -          -       -      -         -         -             -
take_over_stale     ?    -         -    -      !         -          -       -      -         -         -             -
rescue              ?    -         -    -      lost+queu -          -       -      -         -         -             -
rescue_stale        ?    -         -    -      !         -          -       -      -         -         -             -
complete            ?    !         !    !      comp      !          !       !      !         !         !             !
complete_unheld     ?    -         -    -      !         -          -       -      -         -         -             -
fail_at_once        ?    !         !    !      fail+queu !          !       !      !         !         !             !
fail_later          ?    !         !    !      fail      !          !       !      !         !         !             !
fail_for_good       ?    !         !    !      fail+dead !          !       !      !         !         !             !
interrupt           ?    !         !    !      inte+queu !          !       !      !         !         !             !
snooze              ?    !         !    !      snoo      !          !       !      !         !         !             !
pause               ?    !         !    !      paus      !          !       !      !         !         !             !
confirm_cancel      ?    !         !    !      canc      !          !       !      !         !         !             !
checkpoint          ?    !         !    !      chec      !          !       !      !         !         !             !
progress            ?    !         !    !      prog      !          !       !      !         !         !             !
cancel              ?    canc      canc canc   c_re      canc       canc    canc   -         -         -             -
dead_letter         ?    -         -    dead   !         -          -       -      -         -         -             -
dead_letter_running ?    -         -    !      lost+dead -          -       -      -         -         -             -
requeue             ?    -         -    -      -         -          -       -      -         -         queu          -
discard             ?    -         -    -      -         -          -       -      -         -         disc          -
fence               ?    -         -    -      -         fenc       fenc    fenc   fenc      fenc      fenc          fenc
fence_unknown       ?    -         -    -      -         -          -       -      -         -         -             -
carry               ?    carr      carr carr+queu carr+queu carr       carr    carr   -         -         carr          -
carry_less          ?    carr      carr carr   carr      carr       carr    carr   carr      carr      carr          carr
start_step          ?    !         !    !      s_st      !          !       !      !         !         !             !
copy_ends           ?    !         !    !      -         !          !       !      !         !         !             !
complete_step       ?    !         !    !      s_co      !          !       !      !         !         !             !
fail_step           ?    !         !    !      s_fa      !          !       !      !         !         !             !
refuse_signal       ?    !         !    !      -         !          !       !      !         !         !             !
join                ?    -         -    -      -         -          -       -      -         -         -             -
signal              ?    sign      sign sign   sign      sign       sign    sign   -         -         -             -
request_pause       ?    paus      paus paus   p_re      paus       paus    -      -         -         -             -
resume              ?    -         -    -      -         -          -       queu   -         -         -             -
note                ?    note      note note   note      note       note    note   note      note      note          note
"""

SHORT = {
    "queued": "queu", "scheduled": "sche", "held": "held", "started": "star", "completed": "comp",
    "failed": "fail", "cancelled": "canc", "interrupted": "inte", "paused": "paus", "snoozed": "snoo",
    "dead_lettered": "dead", "discarded": "disc", "checkpointed": "chec", "progressed": "prog",
    "cancel_requested": "c_re", "fenced": "fenc", "carried": "carr",
    "step_started": "s_st", "step_completed": "s_co", "step_failed": "s_fa", "joined": "join", "signalled": "sign",
    "pause_requested": "p_re", "noted": "note", "lost": "lost",
}  # fmt: skip


def table() -> list[tuple[str, JobState | None, str]]:
    head, *lines = (line.split() for line in TABLE.strip().splitlines())
    states = [None if name == "none" else JobState(name) for name in head]
    return [(line[0], state, cell) for line in lines for state, cell in zip(states, line[1:], strict=True)]


def outcome(job: Job | None, command: Command) -> str:
    try:
        events = decide(job, command, STAMP)
    except (JobNotFoundError, JobExistsError, IllegalTransitionError, StaleClaimError) as error:
        return next(sign for sign, cls in REFUSALS.items() if type(error) is cls)
    return "+".join(SHORT[event_type(event)] for event in events)


def test_table_has_every_command_in_every_state() -> None:
    cells = table()
    assert {name for name, _, _ in cells} == set(COMMANDS)
    assert {state for _, state, _ in cells} == {None, *JobState}
    assert {type(command) for command in COMMANDS.values()} == set(get_args(Command))
    assert len(cells) == len(COMMANDS) * (len(JobState) + 1)


@each_row(("name", "state", "expected"), table(), ids=str)
def test_decide_follows_the_table(name: str, state: JobState | None, expected: str) -> None:
    assert outcome(JOBS[state], COMMANDS[name]) == expected


@each_row("state", JobState)
def test_journeys_reach_their_state(state: JobState) -> None:
    assert grow(*JOURNEYS[state]).state is state


# What the events say, one line per case: the way there, the command, the event's fields.
ASKED: tuple[Command, ...] = (NEW, CLAIM, CancelJob(reason="no"))
LAST: tuple[Command, ...] = (Enqueue(ref=REF, task="send", order=Order(max_attempts=1)), CLAIM)
DEAD: tuple[Command, ...] = (*LAST, Fail(epoch=EPOCH, error=BOOM))
GIVEN_BACK: tuple[Command, ...] = (*LAST, Interrupt(epoch=EPOCH, reason="deploy"))
REVIVED: tuple[Command, ...] = (
    NEW,
    CLAIM,
    CancelJob(),
    DeadLetter(reason="max_deliver", epoch=EPOCH),
    Requeue(attempts=2),
)
MISSING = object()
LOST: dict[str, object] = {"type": "lost", "attempt": 1, "worker": "w1", "epoch": EPOCH}
HELD = Enqueue(
    ref=REF,
    task="send",
    order=Order(limits=("api",), tenant="acme", fair="a", metadata={"k": "v"}, max_attempts=2),
)
ADMIT = Dispatch(cause="admitted", grant=7)

# fmt: off
SAYS: list[tuple[tuple[Command, ...], Command, list[dict[str, object]]]] = [
    ((NEW,), CLAIM, [{"type": "started", "attempt": 1, "worker": "w1", "lease_s": 15.0}]),
    ((NEW, CLAIM), FAIL_LATER, [{"type": "failed", "attempt": 1, "retry_at": LATER}]),
    (
        (NEW, CLAIM),
        Fail(epoch=2, error=BOOM, retry_at=NOW),
        [{"retry_at": NOW}, {"cause": "retried", "attempt": 2}],
    ),
    ((NEW, CLAIM), Fail(epoch=2, error=BOOM), [{"retry_at": NOW}, {"cause": "retried", "attempt": 2}]),
    (LAST, FAIL_LATER, [{"type": "failed", "retry_at": None}, {"reason": "exhausted", "error": BOOM}]),
    (LAST, GIVE_UP, [{"type": "failed", "retry_at": None}, {"reason": "rejected", "error": BOOM}]),
    (ASKED, FAIL_LATER, [{"type": "failed", "retry_at": None}, {"type": "cancelled", "reason": "no"}]),
    (ASKED, GIVE_UP, [{"type": "failed"}, {"type": "cancelled", "reason": "no"}]),
    (ASKED, Interrupt(epoch=2, reason="deploy"), [{"type": "cancelled", "reason": "no"}]),
    (ASKED, Snooze(epoch=2, until=LATER), [{"type": "cancelled", "reason": "no"}]),
    (ASKED, Pause(epoch=2, event="paid"), [{"type": "cancelled", "reason": "no"}]),
    (ASKED, TakeOver(worker="w2", lease_s=1, lost_epoch=2), [LOST, {"type": "cancelled", "reason": "no"}]),
    (ASKED, ConfirmCancel(epoch=2), [{"type": "cancelled", "reason": "no"}]),
    (ASKED, ConfirmCancel(epoch=2, reason="done"), [{"type": "cancelled", "reason": "done"}]),
    (ASKED, COMPLETE, [{"type": "completed", "attempt": 1}]),
    (
        LAST,
        TakeOver(worker="w2", lease_s=1, lost_epoch=2),
        [LOST, {"type": "dead_lettered", "reason": "exhausted"}],
    ),
    ((NEW, CLAIM), TakeOver(worker="w2", lease_s=1, lost_epoch=2), [LOST, {"type": "started", "attempt": 2}]),
    (ASKED, Rescue(lost_epoch=2), [LOST, {"type": "cancelled", "reason": "no"}]),
    (LAST, Rescue(lost_epoch=2), [LOST, {"type": "dead_lettered", "reason": "exhausted"}]),
    ((NEW, CLAIM), Rescue(lost_epoch=2), [LOST, {"type": "queued", "cause": "redispatched", "attempt": 2}]),
    (LAST, Interrupt(epoch=2, reason="d"), [{"reason": "d"}, {"cause": "interrupted", "attempt": 2}]),
    (
        (NEW, CLAIM, FAIL_LATER),
        Reschedule(run_at=NOW, reason="now"),
        [{"type": "scheduled", "run_at": NOW, "reason": "now", "max_attempts": 3, "input": NO_VALUE}],
    ),
    (
        (NEW, CLAIM, FAIL_LATER, Reschedule(run_at=NOW)),
        Dispatch(cause="due"),
        [{"cause": "due", "attempt": 2}],
    ),
    (
        JOURNEYS[JobState.SCHEDULED],
        Reschedule(run_at=LATER, input=msgspec.Raw(b"{}")),
        [{"input": msgspec.Raw(b"{}"), "run_at": LATER}],
    ),
    (GIVEN_BACK, CLAIM, [{"type": "started", "attempt": 2}]),
    (DEAD, Requeue(), [{"cause": "requeued", "attempt": 2, "max_attempts": 2, "input": NO_VALUE}]),
    (DEAD, Requeue(attempts=-7), [{"attempt": 2, "max_attempts": 2}]),
    (DEAD, Requeue(attempts=5, priority="high"), [{"attempt": 2, "max_attempts": 6, "priority": "high"}]),
    (DEAD, Requeue(input=msgspec.Raw(b"{}")), [{"input": msgspec.Raw(b"{}"), "input_ref": None}]),
    (REVIVED, Claim(worker="w2", lease_s=1), [{"type": "started", "attempt": 2}]),
    (
        (*REVIVED, CLAIM),
        Fail(epoch=7, error=BOOM),
        [{"type": "failed"}, {"type": "queued", "cause": "retried"}],
    ),
    (
        (NEW,),
        Dispatch(cause="redispatched", priority="low"),
        [{"priority": "low", "attempt": 1, "max_attempts": 3}],
    ),
    ((HELD,), ADMIT, [{"cause": "admitted", "grant": 7, "limits": ("api",), "tenant": "acme", "fair": "a", "metadata": {"k": "v"}}]),
    ((HELD, ADMIT), PutBack(asked_by=2), [{"type": "held", "cause": "ungranted", "limits": ("api",), "fair": "a", "attempt": 1}]),
    ((HELD, ADMIT, CLAIM), Complete(epoch=3), [{"type": "completed", "limited": True}]),
    ((NEW, CLAIM), COMPLETE, [{"type": "completed", "limited": False}]),
    ((*LAST, COMPLETE), FENCE, [{"held_epoch": 2, "current_epoch": 0, "outcome": "completed"}]),
]
# fmt: on


@each_row(("way", "command", "expected"), SAYS)
def test_events_say_what_happened(
    way: tuple[Command, ...], command: Command, expected: list[dict[str, object]]
) -> None:
    events = decide(grow(*way), command, STAMP)
    assert len(events) == len(expected)
    for event, fields in zip(events, expected, strict=True):
        actual = {
            "type": event_type(event),
            **{name: getattr(event, name, MISSING) for name in fields if name != "type"},
        }
        assert actual == {"type": event_type(event), **fields}
        assert (event.job, event.queue, event.task, event.at, event.by) == (
            "j1",
            "email",
            "send",
            NOW,
            "host-1-abc",
        )


REFUSED: list[tuple[tuple[Command, ...], Command, str]] = [
    (LAST, Complete(epoch=1), "job j1: claim 1 is stale, the current one is 2"),
    ((NEW, CLAIM, TakeOver(worker="w2", lease_s=1, lost_epoch=2)), COMPLETE, "job j1: claim 2 is stale, the current one is 4"),
    ((NEW, CLAIM, Rescue(lost_epoch=2)), COMPLETE, "job j1: claim 2 is stale, the current one is 0"),
    ((NEW, CLAIM, COMPLETE), COMPLETE, "job j1: claim 2 is stale, the current one is 0"),
    (ASKED, CancelJob(), "job j1 is already asked to end: it cannot be cancelled again"),
    ((NEW, CLAIM), Fence(epoch=2, attempt=1, worker="w1", outcome="completed"), "job j1 is held by this claim: it cannot be fenced"),
    (
        (NEW, CLAIM, COMPLETE),
        Fence(epoch=2, attempt=7, worker="w1", outcome="failed"),
        "job j1 is completed: it cannot be fenced for a claim it never had",
    ),
    (JOURNEYS[JobState.RETRY_WAIT], Dispatch(cause="redispatched"), "job j1 is retry_wait: it cannot be queued as 'redispatched'"),
    (JOURNEYS[JobState.HELD], Dispatch(cause="admitted"), "job j1 is held: it cannot be queued as 'admitted' by grant 0"),
    ((NEW,), Dispatch(cause="redispatched", grant=7), "job j1 is queued: it cannot be queued as 'redispatched' by grant 7"),
    ((NEW,), PutBack(asked_by=1), "job j1 is queued since sequence 1 with 0 limits: it cannot be put back for 1"),
    ((HELD, ADMIT), PutBack(asked_by=1), "job j1 is queued since sequence 2 with 1 limits: it cannot be put back for 1"),
    ((HELD, ADMIT, CLAIM), PutBack(asked_by=2), "job j1 is running: it cannot be put back behind its limits"),
    (JOURNEYS[JobState.HELD], Dispatch(cause="due"), "job j1 is held: it cannot be queued as 'due'"),
    ((NEW,), Dispatch(cause="due"), "job j1 is queued: it cannot be queued as 'due'"),
]  # fmt: skip


@each_row(("way", "command", "sentence"), REFUSED)
def test_refusals_are_sentences(way: tuple[Command, ...], command: Command, sentence: str) -> None:
    with pytest.raises(LedgerError) as caught:
        decide(grow(*way), command, STAMP)
    assert str(caught.value) == sentence


def test_a_first_event_carries_the_whole_order() -> None:
    ref = PayloadRef(sha256="0" * 64, size_bytes=70_000)
    order = Enqueue(ref=REF, task="send", run_at=LATER, order=Order(input_ref=ref, priority="high", max_attempts=4, timeout_s=2.5, notify="inbox1", tenant="acme", limits=("api",), batch="b1", tick="nightly-1", metadata={"k": "v"}, fair="acme"))  # fmt: skip
    stamp = Stamp(at=NOW, by="op", trace="00-aa-bb-01", correlation="c", causation="d")
    (event,) = decide(None, order, stamp)
    assert isinstance(event, Scheduled)
    for field in (
        "input_ref",
        "priority",
        "max_attempts",
        "timeout_s",
        "notify",
        "tenant",
        "limits",
        "batch",
        "tick",
        "metadata",
        "fair",
    ):
        assert getattr(event, field) == getattr(order.order, field), field
    assert event.run_at == order.run_at
    assert (event.by, event.trace, event.correlation, event.causation) == ("op", "00-aa-bb-01", "c", "d")


#: A value of each field of an order that is not the one it has unless said.
SAID: Final[dict[str, Any]] = {
    "priority": "high",
    "input": msgspec.Raw(b'{"n":1}'),
    "input_ref": PayloadRef(sha256="0" * 64, size_bytes=70_000),
    "max_attempts": 4,
    "timeout_s": 2.5,
    "notify": "inbox1",
    "tenant": "acme",
    "limits": ("api",),
    "batch": "b1",
    "tick": "nightly-1",
    "trace": "t",
    "correlation": "c",
    "metadata": {"k": "v"},
    "fair": "acme",
    "unique": "0" * 64,
    "version": "2",
    "member": Member(queue="email", job="j1", step="s"),
    "rerun_of": RerunOf(queue="email", job="j0", sequence=1, hash="0" * 64, from_step=""),
    "on_end": (Callback(on="fail", task="told", queue="email", argument="end"),),
    "deadline_s": 60.0,
    "inherits": ("api",),
    "key": "person:17/1",
}


def test_each_field_of_an_order_is_in_the_first_event_also_where_it_is_the_only_one_said() -> None:
    assert tuple(SAID) == Order.__struct_fields__
    for field, value in SAID.items():
        order = Order(**{field: value})
        (event,) = decide(None, Enqueue(ref=REF, task="send", order=order), STAMP)
        found = order_at_first(event)
        assert found == msgspec.structs.replace(order, trace=found.trace, correlation=found.correlation), (
            field
        )
        assert getattr(found, field) == value


def test_an_order_may_bring_its_own_trace_and_correlation() -> None:
    order = Order(trace="t", correlation="c")
    stamp = Stamp(at=NOW, by="a", trace="t2", correlation="c2")
    (own,) = decide(None, Enqueue(ref=REF, task="send", order=order), stamp)
    (stamped,) = decide(None, Enqueue(ref=REF, task="send"), stamp)
    assert (own.trace, own.correlation, stamped.trace, stamped.correlation) == ("t", "c", "t2", "c2")


def test_a_time_that_has_come_is_no_delay() -> None:
    (event,) = decide(None, Enqueue(ref=REF, task="send", run_at=NOW), STAMP)
    assert isinstance(event, Queued)


def test_later_events_inherit_trace_and_correlation_unless_stamped() -> None:
    job = evolve(None, decide(None, NEW, Stamp(at=NOW, by="a", trace="t", correlation="c"))[0], 1)
    (inherited,) = decide(job, CLAIM, STAMP)
    (own,) = decide(job, CLAIM, Stamp(at=NOW, by="a", trace="t2", correlation="c2"))
    assert (inherited.trace, inherited.correlation, own.trace, own.correlation) == ("t", "c", "t2", "c2")


def test_attempts_never_exceed_what_was_granted() -> None:
    job = grow(*DEAD)
    for _ in range(3):  # each requeue grants exactly one
        job = step(job, Requeue())
        job = step(job, CLAIM)
        assert job.attempts_left == 0
        job = step(job, Fail(epoch=job.claim_epoch, error=BOOM))
        assert job.state is JobState.DEAD_LETTERED
    assert len(job.attempts) == 4


def step(job: Job, command: Command) -> Job:
    for event in decide(job, command, STAMP):
        job = evolve(job, event, job.last_sequence + 1)
    return job


def _of_type(events: tuple[JobEvent, ...], *types: type[JobEvent]) -> bool:
    return [type(event) for event in events] == list(types)


def test_a_retry_without_a_reason_is_still_told_from_a_timer_that_came_early() -> None:
    waiting = grow(NEW, CLAIM, FAIL_LATER)
    assert waiting.due_at is not None
    (queued,) = decide(waiting, retry_command(waiting, waiting.id, ""), STAMP)
    assert early(waiting, queued, STAMP.at, timedelta(seconds=1)) is None


def test_a_failure_and_its_consequence_are_one_batch() -> None:
    assert _of_type(decide(grow(*LAST), FAIL_LATER, STAMP), Failed, DeadLettered)
    assert _of_type(decide(grow(*ASKED), FAIL_LATER, STAMP), Failed, Cancelled)
    assert _of_type(decide(grow(NEW, CLAIM), Fail(epoch=2, error=BOOM), STAMP), Failed, Queued)
    assert _of_type(decide(grow(NEW), CLAIM, STAMP), Started)


def test_a_failure_whose_work_item_is_offered_again_queues_its_job_by_itself() -> None:
    again = Fail(epoch=EPOCH, error=BOOM, offers_again=True)
    (failed,) = decide(grow(NEW, CLAIM), again, STAMP)
    assert isinstance(failed, Failed)
    assert (failed.v, failed.dispatch, failed.epoch, failed.given_back) == (2, 1, EPOCH, 0)
    queued = grow(NEW, CLAIM, again)
    assert (queued.state, queued.dispatch_sequence, queued.wait_sequence) == (JobState.QUEUED, 1, 3)
    assert grow(NEW, CLAIM, again, CLAIM).attempts_count == 2
    kept = Checkpoint(epoch=EPOCH, value=msgspec.Raw(b"1"))
    (failed,) = decide(grow(NEW, CLAIM, kept), again, STAMP)
    assert isinstance(failed, Failed)
    assert failed.given_back is None, "the next attempt needs the checkpoint"
    later = msgspec.structs.replace(again, retry_at=LATER)
    assert grow(NEW, CLAIM, later).state is JobState.RETRY_WAIT
    assert _of_type(decide(grow(*LAST), again, STAMP), Failed, DeadLettered)
    assert _of_type(decide(grow(*ASKED), again, STAMP), Failed, Cancelled)
    low = msgspec.structs.replace(again, retry_priority="low")
    assert _of_type(decide(grow(NEW, CLAIM), low, STAMP), Failed, Queued)


@each_row(
    ("kind", "expected"),
    [(Complete, "completed"), (Fail, "failed"), (Interrupt, "interrupted"), (Snooze, "snoozed"), (Pause, "paused"), (ConfirmCancel, "cancelled")],
)  # fmt: skip
def test_outcome_type_names_the_first_event(kind: type[Outcome], expected: str) -> None:
    command = next(command for command in COMMANDS.values() if isinstance(command, kind))
    assert outcome_type(command) == expected == event_type(decide(JOBS[JobState.RUNNING], command, STAMP)[0])
