"""The checker on unique jobs: it finds two of a key that are alive, and nothing where the key was free."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.support.stories import BOOM, Story, check, found
from tests.support.tables import each_row

from jobledger.audit.verify import CheckOptions
from jobledger.ledger.model.commands import CancelJob, Fail, Requeue
from jobledger.ledger.model.unique import Taken, Until

KEY = "2c26b46b68ffc68ff99b453c1d30413413422d70"


class Keys(Story):
    """A ledger in which a test gives a key to whom it likes."""

    number = 0

    def take(self, job: str, until: Until = "ended", *, key: str = KEY, for_s: float = 0) -> None:
        self.number += key == KEY
        number = self.number if key == KEY else 1
        expires_at = self.now + timedelta(seconds=for_s) if for_s else None
        fields: dict[str, Any] = {"until": until, "expires_at": expires_at, "queue": "email", "job": job}
        self.record(Taken(at=self.now, by="w1", task="send", key=key, number=number, **fields))

    def make(self, job: str, until: Until = "ended", *, for_s: float = 0) -> None:
        self.take(job, until, for_s=for_s)
        self.enqueue(job, unique=KEY)

    def bury(self, job: str) -> None:
        self.claim(job)
        self.do(job, Fail(epoch=self.epoch(job), error=BOOM, give_up="rejected"))


def _taken_while_held(story: Keys) -> None:
    story.make("a")
    story.make("b")


def _taken_before_it_was_made(story: Keys) -> None:
    story.take("a")
    story.make("b")


def _made_beside_another(story: Keys) -> None:
    story.make("a")
    story.enqueue("b", unique=KEY)


def _made_without_a_key(story: Keys) -> None:
    story.enqueue("a", unique=KEY)


def _requeued_beside_another(story: Keys) -> None:
    story.make("a")
    story.bury("a")
    story.make("b")
    story.do("a", Requeue())


def _taken_before_it_expired(story: Keys) -> None:
    story.make("a", for_s=60)
    story.run("a")
    story.make("b", for_s=60)


def _one_after_the_other(story: Keys) -> None:
    for job in "abc":
        story.make(job)
        story.run(job)


def _requeued_with_its_key(story: Keys) -> None:
    story.make("a")
    story.bury("a")
    story.do("a", Requeue())
    story.take("a")


def _one_waits_while_another_runs(story: Keys) -> None:
    story.make("a", "started")
    story.claim("a")
    story.make("b", "started")


def _replaced_before_it_expired(story: Keys) -> None:
    story.make("a", for_s=60)
    story.do("a", CancelJob(reason="superseded by job b"))
    story.make("b", for_s=60)


def _after_it_expired(story: Keys) -> None:
    story.make("a", for_s=60)
    story.now += timedelta(seconds=60)
    story.make("b", for_s=60)


BROKEN: tuple[tuple[Callable[[Keys], None], str], ...] = (
    (_taken_while_held, "job email/a held it, queued then"),
    (_taken_before_it_was_made, "job email/a held it, not made yet"),
    (_made_beside_another, "it comes alive while job email/a holds its key"),
    (_made_without_a_key, "nobody took its key"),
    (_requeued_beside_another, "it comes alive while job email/b holds its key"),
    (_taken_before_it_expired, "job email/a held it, completed then"),
)
SOUND = (
    _one_after_the_other,
    _requeued_with_its_key,
    _one_waits_while_another_runs,
    _after_it_expired,
    _replaced_before_it_expired,
)


@each_row("write, sentence", BROKEN)
def test_two_alive_jobs_of_a_key_are_found(write: Callable[[Keys], None], sentence: str) -> None:
    story = Keys()
    write(story)
    report = check(story.messages)
    assert {violation.rule for violation in report.violations} == {"unique"}
    assert sentence in report.violations[0].sentence


@each_row("write", SOUND)
def test_a_key_that_was_free_may_be_taken(write: Callable[[Keys], None]) -> None:
    story = Keys()
    write(story)
    assert found(check(story.messages)) == []


def test_two_alive_jobs_of_a_key_are_found_in_bounded_memory() -> None:
    story = Keys()
    story.make("a")
    for number in range(300):
        key = f"{number:040x}"
        story.take(f"j{number}", key=key)
        story.enqueue(f"j{number}", unique=key)
    story.make("b")
    report = check(story.messages, options=CheckOptions(memory_bytes_max=1 << 16))
    assert [violation.rule for violation in report.violations] == ["unique"]
