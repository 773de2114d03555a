"""The metrics of the exporter: every name, kind and label, and the sentence of each in docs/metrics.md.

Counters and histograms come from the ledger through the projection, so they survive restarts and are equal in two
exporters. Gauges of the server are left out of a scrape that the server did not answer.
"""

from __future__ import annotations

from typing import Final

from jobledger.ledger.metrics.exposition import Measure

_TASK: Final = ("queue", "task")
_LANE: Final = ("queue", "priority")
_ERROR: Final = ("queue", "task", "error_type")

BUILD: Final = Measure(
    "jobledger_build_info", "info", "Version of the exporter, and the environment it reads."
)
UP: Final = Measure(
    "jobledger_up", "gauge", "1 when /healthz is green: what is told here is up to date. Else 0."
)
SILENCE: Final = Measure(
    "jobledger_server_silence_seconds", "gauge", "Time since nats-server answered the exporter last."
)
COLLECT: Final = Measure("jobledger_collect_seconds", "gauge", "Time that this scrape took to collect.")
FOLDED: Final = Measure(
    "jobledger_folded_label_values",
    "gauge",
    "Values of a label without series of their own: `(other)`.",
    ("label",),
)

POSITION: Final = Measure(
    "jobledger_projection_position_sequence", "gauge", "Stream sequence of the newest event counted here."
)
BEGINS: Final = Measure(
    "jobledger_projection_begins_at_sequence",
    "gauge",
    "First stream sequence of the rows; above 1 after an archive.",
)
COUNTS_BEGIN: Final = Measure(
    "jobledger_projection_counts_begin_at_sequence",
    "gauge",
    "First stream sequence in the counters; above 1 where some are missing.",
)
FOLLOWING: Final = Measure(
    "jobledger_projection_following", "gauge", "1 while the exporter follows the ledger, 0 while it cannot."
)
AGREES: Final = Measure(
    "jobledger_projection_agrees",
    "gauge",
    "0 when the ledger lost or changed what was counted here. Else 1.",
)
LAG_EVENTS: Final = Measure(
    "jobledger_projection_lag_events", "gauge", "Events stored and not counted here yet."
)
LAG_SECONDS: Final = Measure(
    "jobledger_projection_lag_seconds",
    "gauge",
    "Age of the oldest of them, by the server's clock; 0 without any.",
)

LEDGER_BYTES: Final = Measure("jobledger_ledger_bytes", "gauge", "Size of the ledger.")
LEDGER_COMMITTED: Final = Measure(
    "jobledger_ledger_committed_bytes",
    "gauge",
    "Size of the ledger with the events that waiting jobs still need; above 90 % of the limit new jobs are refused.",
)
LEDGER_LIMIT: Final = Measure(
    "jobledger_ledger_limit_bytes", "gauge", "Size at which it refuses events; absent without a limit."
)
LEDGER_EVENTS: Final = Measure("jobledger_ledger_events", "gauge", "Events in the ledger.")
LEDGER_FIRST: Final = Measure(
    "jobledger_ledger_first_sequence", "gauge", "Stream sequence of its oldest event."
)
LEDGER_HEAD: Final = Measure(
    "jobledger_ledger_head_sequence", "gauge", "Stream sequence of its newest event."
)
UNREADABLE: Final = Measure(
    "jobledger_unreadable_messages",
    "gauge",
    "Messages in the ledger that are no events, by whether somebody accepted them.",
    ("acknowledged",),
)
SEALED: Final = Measure(
    "jobledger_sealed_sequence",
    "gauge",
    "Stream sequence that the newest seal goes up to; absent without one.",
)
UNSEALED: Final = Measure(
    "jobledger_unsealed_events", "gauge", "Events after it, without seals; absent without a seal."
)
SEAL_AGE: Final = Measure(
    "jobledger_seal_age_seconds", "gauge", "Age of the newest seal; absent without one."
)
VERIFY_AGE: Final = Measure(
    "jobledger_verify_age_seconds",
    "gauge",
    "Age of the newest check of the ledger that was recorded; absent without one.",
)
VERIFY_SOUND: Final = Measure(
    "jobledger_verify_sound", "gauge", "1 when that check found the ledger sound, else 0; absent without one."
)
ARCHIVE_AGE: Final = Measure(
    "jobledger_archive_age_seconds", "gauge", "Age of the newest archive run; absent without one."
)
RETENTION_SUCCESS: Final = Measure(
    "jobledger_retention_last_success_timestamp_seconds",
    "gauge",
    "When the keeper last found nothing wrong, or began, in Unix time; absent without a keeper.",
)
PLACE_UP: Final = Measure(
    "jobledger_retention_place_up",
    "gauge",
    "1 while the keeper can use the folder of the archive, else 0; absent without a keeper.",
)
TIMERS_PENDING: Final = Measure("jobledger_timers_pending", "gauge", "Jobs that wait for a moment.")
TIMERS_STREAM: Final = Measure(
    "jobledger_timers_stream_messages", "gauge", "Messages in the stream of timers."
)
WORKERS: Final = Measure("jobledger_workers", "gauge", "Worker processes whose lease lives.")

DIAGNOSES: Final = Measure(
    "jobledger_diagnoses",
    "gauge",
    "Things that hurt at this moment, by kind; absent where they cannot be told.",
    ("kind",),
)

JOBS: Final = Measure("jobledger_queue_jobs", "gauge", "Jobs by the state they are in.", (*_LANE, "state"))
QUEUE_PAUSED: Final = Measure(
    "jobledger_queue_paused", "gauge", "1 while somebody has paused the queue, else 0.", ("queue",)
)
OLDEST_WAITING: Final = Measure(
    "jobledger_queue_oldest_waiting_seconds",
    "gauge",
    "How long the oldest queued job has waited; 0 without.",
    _LANE,
)
OLDEST_RUNNING: Final = Measure(
    "jobledger_queue_oldest_running_seconds",
    "gauge",
    "How long the oldest attempt has run; 0 without.",
    _LANE,
)
QUEUE_WORKERS: Final = Measure(
    "jobledger_queue_workers",
    "gauge",
    "Worker processes with a living lease that serve the queue.",
    ("queue",),
)
WORKERS_WANTED: Final = Measure(
    "jobledger_queue_workers_wanted",
    "gauge",
    "Workers that the queue needs, as large as those that serve it: for jobs that wait to be taken within 30 s.",
    ("queue",),
)
UNDELIVERED: Final = Measure(
    "jobledger_queue_undelivered", "gauge", "Dispatches that no worker has been given yet.", _LANE
)
UNSETTLED: Final = Measure(
    "jobledger_queue_unsettled",
    "gauge",
    "Dispatches that workers were given and have not acknowledged.",
    _LANE,
)
REDELIVERED: Final = Measure(
    "jobledger_queue_redelivered", "gauge", "Of these, dispatches that were delivered more than once.", _LANE
)

HELD: Final = Measure(
    "jobledger_limit_held_jobs",
    "gauge",
    "Jobs that wait for a limit; one that waits for several counts for each.",
    ("limit",),
)
OLDEST_HELD: Final = Measure(
    "jobledger_limit_oldest_held_seconds",
    "gauge",
    "How long the oldest of them has waited; 0 without.",
    ("limit",),
)
HOLDERS: Final = Measure(
    "jobledger_limit_holders", "gauge", "Jobs that hold a slot of the limit, whatever their keys.", ("limit",)
)
LIMIT_DEFINED: Final = Measure(
    "jobledger_limit_defined",
    "gauge",
    "0 when nobody has set the limit, so that jobs that name it wait. Else 1.",
    ("limit",),
)
LIMIT_WAIT: Final = Measure(
    "jobledger_limit_wait_seconds",
    "histogram",
    "How long jobs were held that the limit let go on; a job of several limits counts for each.",
    ("limit",),
)

_SCHEDULE: Final = ("schedule",)
TICKS: Final = Measure(
    "jobledger_schedule_ticks_total", "counter", "Ticks, also those that made no job.", _SCHEDULE
)
TICKED_JOBS: Final = Measure(
    "jobledger_schedule_jobs_total", "counter", "Jobs that these ticks made.", _SCHEDULE
)
TICKS_MISSED: Final = Measure(
    "jobledger_schedule_missed_total",
    "counter",
    "Ticks that were missed and not caught up.",
    _SCHEDULE,
)
TICKS_SKIPPED: Final = Measure(
    "jobledger_schedule_skipped_total",
    "counter",
    "Ticks that made no job because the last one had not ended.",
    _SCHEDULE,
)
TICK_LATE: Final = Measure(
    "jobledger_schedule_late_seconds",
    "gauge",
    "How long its next tick has been due; 0 before its time.",
    _SCHEDULE,
)
SCHEDULE_PAUSED: Final = Measure(
    "jobledger_schedule_paused", "gauge", "1 while somebody has paused the schedule, else 0.", _SCHEDULE
)

WEBHOOK_DISABLED: Final = Measure(
    "jobledger_webhook_disabled",
    "gauge",
    "1 while the gateway has disabled the webhook because its deliveries do not arrive, else 0.",
    ("webhook",),
)
WATCH_FIRING: Final = Measure(
    "jobledger_watch_firing", "gauge", "1 while the watch fires, else 0.", ("watch",)
)

_QUEUE: Final = ("queue",)
STEPS: Final = Measure(
    "jobledger_steps_total",
    "counter",
    "Ends of steps of runs, and tries that are followed by another.",
    ("queue", "target", "outcome"),
)
STEP_RUN: Final = Measure(
    "jobledger_step_run_seconds",
    "histogram",
    "How long completed steps took in their last try; waits and children are left out.",
    ("queue", "target"),
)
JOINS: Final = Measure(
    "jobledger_joins_total", "counter", "Events that count ends of runs' children.", _QUEUE
)
JOINED: Final = Measure(
    "jobledger_children_joined_total",
    "counter",
    "Children that were counted as ended.",
    ("queue", "outcome"),
)
JOIN_LAG: Final = Measure(
    "jobledger_join_lag_seconds", "histogram", "From a child's end to its being counted.", _QUEUE
)
RUNS_WAITING: Final = Measure(
    "jobledger_runs_waiting",
    "gauge",
    "Runs by what they wait for; one that waits for several counts for each.",
    ("awaits",),
)
RUNS_DIVERGED: Final = Measure(
    "jobledger_runs_diverged_total",
    "counter",
    "Runs that ended because their code asks for something else than is recorded.",
    _QUEUE,
)

#: Column of `totals` -> its counter.
COUNTERS: Final = {
    "enqueued": Measure("jobledger_jobs_enqueued_total", "counter", "Jobs that came in.", _TASK),
    "started": Measure("jobledger_attempts_started_total", "counter", "Attempts.", _TASK),
    "completed": Measure("jobledger_jobs_completed_total", "counter", "Jobs that completed.", _TASK),
    "failed": Measure("jobledger_attempts_failed_total", "counter", "Attempts that failed.", _TASK),
    "retried": Measure(
        "jobledger_attempts_retried_total", "counter", "Dispatches after a failed attempt.", _TASK
    ),
    "lost": Measure("jobledger_attempts_lost_total", "counter", "Attempts whose worker was lost.", _TASK),
    "interrupted": Measure(
        "jobledger_attempts_interrupted_total",
        "counter",
        "Attempts given back by a worker that stopped.",
        _TASK,
    ),
    "snoozed": Measure(
        "jobledger_attempts_snoozed_total", "counter", "Attempts that asked for a later one.", _TASK
    ),
    "paused": Measure(
        "jobledger_attempts_paused_total", "counter", "Attempts that wait for something.", _TASK
    ),
    "cancelled": Measure("jobledger_jobs_cancelled_total", "counter", "Jobs that ended by request.", _TASK),
    "dead_lettered": Measure(
        "jobledger_jobs_dead_lettered_total", "counter", "Jobs that became dead letters.", _TASK
    ),
    "requeued": Measure(
        "jobledger_jobs_requeued_total", "counter", "Dead letters given new attempts.", _TASK
    ),
    "discarded": Measure("jobledger_jobs_discarded_total", "counter", "Dead letters closed for good.", _TASK),
    "fenced": Measure(
        "jobledger_outcomes_fenced_total", "counter", "Outcomes refused because their claim was lost.", _TASK
    ),
    "redispatched": Measure(
        "jobledger_jobs_redispatched_total",
        "counter",
        "Dispatches of jobs that nobody had taken, or lost.",
        _TASK,
    ),
    "admitted": Measure(
        "jobledger_jobs_admitted_total", "counter", "Jobs that their limits let go on.", _TASK
    ),
    "ungranted": Measure(
        "jobledger_jobs_ungranted_total",
        "counter",
        "Of these, jobs that nobody took, and that wait for their limits again.",
        _TASK,
    ),
}
#: Histogram of `totals` -> its metric.
HISTOGRAMS: Final = {
    "wait": Measure("jobledger_job_wait_seconds", "histogram", "From becoming queued to a start.", _TASK),
    "run": Measure("jobledger_attempt_run_seconds", "histogram", "From a start to its outcome.", _TASK),
    "total": Measure(
        "jobledger_job_total_seconds", "histogram", "From a job's first event to its end.", _TASK
    ),
}
_QUANTILE: Final = (*_TASK, "quantile")
#: Histogram of `totals` -> metric of the quantiles of its last minutes.
QUANTILES: Final = {
    "wait": Measure(
        "jobledger_job_wait_recent_seconds",
        "gauge",
        "Within which time a part of the starts of the last 5 minutes came.",
        _QUANTILE,
    ),
    "run": Measure(
        "jobledger_attempt_run_recent_seconds",
        "gauge",
        "Within which time a part of the attempts that ended in the last 5 minutes did.",
        _QUANTILE,
    ),
    "total": Measure(
        "jobledger_job_total_recent_seconds",
        "gauge",
        "Within which time a part of the jobs that ended in the last 5 minutes did.",
        _QUANTILE,
    ),
}
#: Column of `failures` -> its counter.
FAILURES: Final = {
    "failed": Measure(
        "jobledger_task_failures_total",
        "counter",
        "Attempts that failed, by the type of their error.",
        _ERROR,
    ),
    "dead_lettered": Measure(
        "jobledger_task_dead_letters_total",
        "counter",
        "Jobs that became dead letters, by their last error.",
        _ERROR,
    ),
}

#: All metrics of the exporter's `/metrics`.
EXPORTER_METRICS: Final = (
    BUILD,
    UP,
    SILENCE,
    COLLECT,
    FOLDED,
    POSITION,
    BEGINS,
    COUNTS_BEGIN,
    FOLLOWING,
    AGREES,
    LAG_EVENTS,
    LAG_SECONDS,
    LEDGER_BYTES,
    LEDGER_COMMITTED,
    LEDGER_LIMIT,
    LEDGER_EVENTS,
    LEDGER_FIRST,
    LEDGER_HEAD,
    UNREADABLE,
    SEALED,
    UNSEALED,
    SEAL_AGE,
    VERIFY_AGE,
    VERIFY_SOUND,
    ARCHIVE_AGE,
    RETENTION_SUCCESS,
    PLACE_UP,
    TIMERS_PENDING,
    TIMERS_STREAM,
    WORKERS,
    DIAGNOSES,
    JOBS,
    QUEUE_PAUSED,
    OLDEST_WAITING,
    OLDEST_RUNNING,
    QUEUE_WORKERS,
    WORKERS_WANTED,
    UNDELIVERED,
    UNSETTLED,
    REDELIVERED,
    HELD,
    OLDEST_HELD,
    HOLDERS,
    LIMIT_DEFINED,
    LIMIT_WAIT,
    TICKS,
    TICKED_JOBS,
    TICKS_MISSED,
    TICKS_SKIPPED,
    TICK_LATE,
    SCHEDULE_PAUSED,
    WEBHOOK_DISABLED,
    WATCH_FIRING,
    STEPS,
    STEP_RUN,
    JOINS,
    JOINED,
    JOIN_LAG,
    RUNS_WAITING,
    RUNS_DIVERGED,
    *COUNTERS.values(),
    *HISTOGRAMS.values(),
    *QUANTILES.values(),
    *FAILURES.values(),
)
