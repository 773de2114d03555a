"""Every example runs as it is, alone in an empty folder, and prints what it is there to show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.warm import SOURCES, start

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"), key=lambda path: path.name)

#: What each one has to print, in this order; the lines of a set anywhere.
SHOWN: dict[str, list[str | set[str]]] = {
    "approval.py": [
        "30 runs wait; the worker has 10 slots, and is stopped",
        "before the run begins     10  completed  approved by eve",
        "while the run waits       10  completed  approved by eve",
        "while no worker runs      10  completed  refused by eve",
        "when the time is over     10  completed  approved by the manager",
        "after the run's end       10  completed  withdrawn",
        "50 signals: known already",
        "50 signals: recorded",
        "20 signals: refused, the run has ended",
    ],
    "bulk.py": [
        "200 created, 0 were there already",
        "0 created, 200 were there already",
        "200 completed",
    ],
    "by_hand.py": [
        "queued: no worker serves queue reports",
        "retry_wait: attempt 1 failed (Retry: the figures are not there yet); it is tried again at ",
        "queued with 2 attempts left",
        'completed: "report-2025-02.pdf"',
    ],
    "cancel.py": [
        "asked while it was running",
        "the coroutine cleans up",
        "export is cancelled: the customer left",
        "the thread cleans up",
        "export_in_thread is cancelled: the customer left",
        "a waiting job is cancelled at once",
    ],
    "checkpoints.py": [
        "attempt 1 begins at page 0",
        "attempt 2 begins at page 20",
        "40 pages",
        "heard of its progress while it ran: True",
    ],
    "children.py": [
        "attempt 1: 3 jobs made",
        "attempt 2: 0 jobs made",
        "['page 1', 'page 2', 'page 3']",
        "book-7-render-2 was made by book-7: page 2",
    ],
    "cpu_bound.py": [
        "2262 primes below 20,000",
        "in another process",
        "crash is dead_lettered after 2: the process running the task was ended by SIGSEGV",
        "in crash",
        "never_end is dead_lettered after 1: the attempt was stopped after its timeout of 0.5 s",
    ],
    "dead_letters.py": [
        "job charge-0 failed: ValueError: cannot charge c0 0 cents",
        "3 dead letters like charge-2: ValueError: cannot charge c2 -2 cents",
        "refused: task charge (customer, cents): Expected `int`",
        "charged c0 100 cents",
        "charge-2 is discarded",
    ],
    "delayed_and_retried.py": [
        "while it waits it is scheduled",
        "reminded ada: scheduled queued started completed",
        "reminded grace: scheduled queued started completed",
        "sent to ada at attempt 3: queued started failed queued started failed queued started completed",
        "grace replied: queued started snoozed queued started failed queued started completed",
        "dispatched before its time: False",
    ],
    "export.py": [
        "9 events from 1 to 9",
        "3 events of one job",
        "the export is sound",
        "1 queued",
        "9 events are back",
        "the same bytes: True",
        "the export is NOT sound: 2 violations (export 2)",
        "it was altered: its checksum is not what the manifest says",
    ],
    "etl_tables.py": [
        "2,000 rows through three queries in ",
        "by_sku",
        "another run was refused: table 'best' is not of run ",
        "another run was refused: step 'by_path' failed: PermissionException",
        "after their time: table 'early' of step 'early' of run late-1 expired at ",
        "`jobledger jobs rerun late-1 --from early` makes it again",
        "a rerun made it again: 1 row",
        "the next run made them again: the same bytes from the same ordered queries",
    ],
    "from_postgres.py": ["no PostgreSQL was named, so nothing was copied"],
    "follow_events.py": [
        "stopped; the next reader begins at",
        "order 5 is on its way",
        {"dead letter, exhausted"},
    ],
    "hooks.py": [
        "charged 100 cents",
        "attempt 1 of charge-7: cannot charge 0 cents, again soon",
        "attempt 2 of charge-7: cannot charge 0 cents, no more",
        "charge-7 is a dead letter: exhausted",
    ],
    "inspect_job.py": [
        "report-2025-01.pdf",
        "report-2025-01 is completed after 2 attempts",
        "attempt 1 failed on",
        "LookupError: the figures of 2025-01 are not there yet",
        "attempt 2 completed on",
        "after stream sequence 2 it was running",
    ],
    "job_statistics.py": [
        "billing normal: 1 queued, 2 done",
        "its oldest waits: True",
        "charge: 4 enqueued, 2 completed, 1 failed",
        "half of 3 ran for at most 0.",
        " were started",
        "ValueError: 1 attempts failed, 1 jobs given up",
        "a worker made 3 attempts",
    ],
    "large_payload.py": [
        "200000 words",
        "1,000,011 bytes",
        "the input of task count_words has 10,000,011 bytes and the limit is 8,388,608",
    ],
    "locks.py": [
        "withdrew 10 with fencing number",
        "withdrew 30 with fencing number",
        "not now: lock account/42 is held by ",
        "withdrew 20 with fencing number",
        ": the account has seen ",
        "lost: lock account/42 of fencing number",
        "balance 40",
    ],
    "metrics.py": [
        "jobledger_worker_deliveries_total 4.0",
        "jobledger_up 1.0",
        'jobledger_queue_jobs{priority="normal",queue="email",state="completed"} 3.0',
        'jobledger_queue_jobs{priority="normal",queue="email",state="dead_lettered"} 1.0',
        'jobledger_jobs_completed_total{queue="email",task="send"} 3.0',
        'jobledger_task_failures_total{error_type="ValueError",queue="email",task="send"} 1.0',
    ],
    "pages_and_items.py": [
        "import-1 is paused: 2 pages are read, ",
        "the worker was replaced; import-1 is queued: 3 pages are read, ",
        "import-1: 100 items are published",
        "100 items were stored, none more than twice: True",
        "page 1 is removed again",
        "page 0 is removed again",
        "import-2 is cancelled: the wrong file",
    ],
    "poison.py": [
        "a good job is fine",
        "segfault: dead_lettered after 2 attempts, ",
        "was ended by SIGSEGV",
        "ended itself with exit code 3",
        "memory: dead_lettered after 2 attempts, MemoryError",
        "the attempt was stopped after its timeout of 1 s",
    ],
    "priorities.py": [
        "taken in the order high, normal, low",
        "three in four are of the queue with weight 3: True",
    ],
    "quickstart.py": ["welcome mail sent to user 7", "1 queued ", "2 started ", "3 completed "],
    "read_model.py": [
        "after 9 events:",
        "ada paid 750 cents",
        "grace paid 700 cents",
        "rebuilt from the first event:",
        "ada paid 1500 cents",
        "grace paid 1400 cents",
    ],
    "saga.py": [
        "worker 1 ended with -9",
        "the run is running",
        "worker 1: asks for 120000 cents",
        "worker 1: cancels car-1",
        "worker 1: has cancelled car-1",
        "worker 1: cancels hotel-1",
        "worker 2: cancels hotel-1",
        "worker 2: has cancelled hotel-1",
        "worker 2: cancels flight-1",
        "worker 2: has cancelled flight-1",
        "the run is dead_lettered: step 'pay': the card is refused",
    ],
    "schedules.py": [
        "s made job reports-...",
        "report 1 is sent",
        "report 2 is sent",
        "paused, as code declared it",
    ],
    "seals.py": [
        "sealed 1 to 3",
        "the ledger is sound",
        "without the seal: the ledger is sound",
        "with the seal: stream sequence 1 to 3 is not what it was when it was sealed",
    ],
    "stored_graph.py": [
        "form then company and score then letter then archive",
        "archive  completed after 1 attempt",
        "the execution is completed",
        "score    18",
        "letter   company: what /companies says and score: 18",
        "company  dead_lettered after 3 attempts",
        "score    completed after 1 attempt",
        "letter   not begun",
        "the execution is dead_lettered",
        "node fetch#2: ConnectionError: /down does not answer",
    ],
    "sub_tasks.py": [
        "article-0: small image of article-0, ann paid 100 cents",
        "its callback was told: completed",
        "article-3: dead_lettered",
        "its callback was told: dead_lettered: ChildFailedError: item 0 of step 'charge' failed: ValueError: -1 cents",
        "attempts of the payments: [2, 2, 2, 4]",
        "payments of one account that ran at once: 1",
        "preview-1 is cancelled: superseded by preview-3, limit article:news",
        "preview-2 is cancelled: superseded by preview-3, limit article:news",
        "preview-3 is completed",
    ],
    "tracing.py": [
        "receipt 7",
        "POST /orders",
        "enqueue email",
        "run email failed error",
        "talk to the mail server",
        "run email completed unset",
        "talk to the mail server",
        "1 trace",
    ],
    "subscriber.py": [
        'mailed: order-0: "order 0 is on its way"',
        "crashed at the third: 2 of 4 are not acknowledged",
        {"mailed: order-1 failed: order 1 has no address", "mailed: order-3 failed: order 3 has no address"},
        "counted 4 endings, three at a time",
        "subscription notify was made for something else (types is completed, dead_lettered, not failed)",
    ],
    "rerun.py": [
        "order-77: 99.00 for the reservation of 77; 77 is on its way",
        "order-77-again: 49.00 for the reservation of 77; 77 is on its way",
        "calls of the steps: {'reserve': 1, 'charge': 2, 'ship': 2}",
        "reserve of order-77-again: copied from sequence 3",
        "charge of order-77-again: executed",
        "sound: True; copies proven: 1",
    ],
    "retention.py": [
        "report-2025-01.pdf",
        "4 events archived, 1 job carried on",
        "no job 'january' is in the ledger",
        "report-2025-02.pdf",
        "from stream sequence 5: 1 job, sound: True",
        "from stream sequence 1: 2 jobs, sound: True",
    ],
    "supervised_workers.py": [
        "the supervisor keeps 2 processes",
        "1 + 2 = 3",
        "took its place",
        "3 + 4 = 7",
        "the supervisor ended with 0",
    ],
    "verify_ledger.py": [
        "the ledger is sound",
        "9 events, 3 jobs (completed 3), 3 attempts",
        "the ledger is NOT sound: 1 violation (outcome 1)",
        "at 10 [outcome] email/",
        "`completed` is a second outcome of attempt 1, which was completed before",
    ],
    "webhook.py": [
        "d-1 to /orders: 202 run order-77 begins",
        "d-1 to /orders: 200 run order-77 is there already",
        "d-2 to /payments: 202 noted",
        "d-2 to /payments: 200 noted before",
        "d-3 to /payments: 401 the signature is wrong",
        "d-4 to /payments: 404 no run waits for this payment",
        "d-5 to /payments: 400 Object missing required field `cents`",
        "d-3 to /payments: 202 noted",
        "order 77 is on its way",
        "d-6 to /payments: 409 the run has ended",
    ],
    "workflow.py": [
        "order-77 is waiting, its steps: reserve, charge, approved",
        "the first click was recorded: True; the second one: False",
        "order-77 is completed, its steps: reserve, charge, approved, sleep",
        "charge-77-150000, approved by eve",
        "calls of the steps: {'reserve': 1, 'charge': 1}",
    ],
    "workflow_upgrade.py": [
        "before the deploy of the new code:",
        "4 runs read; fitting this code, as far as they are recorded: 2",
        "changed-1 (changed, waiting): step 'charge' was recorded at stream sequence",
        "added-1 (added, waiting): step 'weigh' is new",
        "1 run diverges from this code: changed-1 (shop): step 'charge'",
        "exit code 4",
        "added-1 is completed",
        "removed-1 is completed",
        "swapped-1 is completed",
        "changed-1 is dead_lettered diverged",
        "before the deploy of the mended code:",
        "1 run read; fitting this code, as far as they are recorded: 1",
        "exit code 0",
        "changed-1 is completed: 77 charged 100",
    ],
    "workflow_kill.py": [
        "run-0, killed inside wire: in doubt, and not done again",
        "run-1, killed between 5: the sum is right, 5 calls for 5 steps",
        "2 workers were killed; every step that had ended ran once (seed 1)",
    ],
    "testing_tasks.py": ["welcome Ada at attempt 2", "welcome Grace ['sent']"],
}
#: What stays on purpose: the README goes on with it.
KEPT = {"quickstart.py": ".jobledger"}
ARGUMENTS = {
    "approval.py": ["50"],
    "bulk.py": ["200"],
    "etl_tables.py": ["2000"],
    "workflow_kill.py": ["2", "1"],
}
#: What the watchdog of a worker says when the machine has no time for its loop: nothing that an example does wrong.
_SLOW_MACHINE = re.compile(
    r"the event loop has been blocked for [\d.]+ s by code that is not a task's.*?\n\n", re.DOTALL
)
#: What a worker says of each, where nobody set up logging.
_DEAD_LETTER = re.compile(r"^the job is a dead letter \(.*\n", re.MULTILINE)


def test_every_example_is_run() -> None:
    assert [path.name for path in EXAMPLES] == sorted(SHOWN)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path, nats_server_binary: str) -> None:
    places = {name: str(tmp_path / name) for name in ("HOME", "XDG_DATA_HOME", "TMPDIR")}
    for place in places.values():
        Path(place).mkdir()
    program = start(
        str(example),
        *ARGUMENTS.get(example.name, []),
        folder=tmp_path,
        variables={**os.environ, **places, "PYTHONPATH": os.pathsep.join(SOURCES)},
        warnings="error",
    )
    try:
        printed, errors = program.communicate(limit_s=100)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with the server and the workers that it started
        raise
    assert program.returncode == 0, errors
    assert _DEAD_LETTER.sub("", _SLOW_MACHINE.sub("", errors)) == ""
    left = {path for path in tmp_path.rglob("*") if KEPT.get(example.name, "-") not in path.parts}
    assert {str(path) for path in left} == set(places.values()), "it leaves no litter"
    at = 0
    for words in SHOWN[example.name]:
        if isinstance(words, set):
            assert words <= set(re.findall("|".join(map(re.escape, words)), printed)), printed
            continue
        found = printed.find(words, at)
        assert found >= 0, f"{words!r} is missing, or too early, in\n{printed}"
        at = found + len(words)
