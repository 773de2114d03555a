"""Fingerprints: one for one cause, whatever the job's own values are, and in linear time."""

from __future__ import annotations

import time

from tests.support.tables import each_row

from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.fingerprint import FINGERPRINT_LENGTH, fingerprint, innermost_frame, normalised


def error(message: str = "no user 7", *, type_name: str = "KeyError", traceback: str = "") -> ErrorInfo:
    return ErrorInfo(kind="exception", type=type_name, message=message, traceback=traceback)


TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/tasks.py", line 12, in send
    return mail(user)
           ^^^^^^^^^^
  File "/srv/app/mail.py", line 40, in mail
    client.post(url)
  File "/srv/venv/lib/python3.11/site-packages/httpx/_client.py", line 800, in post
    raise
"""


@each_row(
    ("message", "expected"),
    [
        ("no user 7", "no user #"),
        ("no user 'ann o''dell'", "no user ##"),
        ('no user "ann" in `users`', "no user # in #"),
        ("job 0197b2f0-aaaa-7bbb-8ccc-0123456789ab is gone", "job # is gone"),
        ("<Cursor object at 0x7f3edbfca050>", "<Cursor object at #>"),
        ("commit deadbeef12 not found", "commit # not found"),
        ("timed out after 30.5 s at 12:30:01,5", "timed out after # s at #"),
        ("a facade decade", "a facade decade"),
        ("  two   spaces \n and a second line", "two spaces"),
        ("it's broken", "it's broken"),
        ("can't find user 'ann', and it's late", "can't find user #, and it's late"),
        ("bad bytes b'\\x00\\xff' in b\"a\"", "bad bytes # in #"),
        ("no user \u201cann\u201d in \u00abusers\u00bb", "no user # in #"),
        ("mailbox ann.o+x@mail7.example.com is full", "mailbox # is full"),
        ("550 <bob@example.org>: rejected", "# <#>: rejected"),
        ("cannot resolve db-1.eu-west.example.com", "cannot resolve #"),
        ("db-1.internal:5432 refused", "# refused"),
        (
            "GET https://user:pw@api3.example.com:8443/v1/charge/91 said 503",
            "GET https://#/v#/charge/# said #",
        ),
        ("GET http://localhost/v1/refund said 503", "GET http://#/v#/refund said #"),
        ("no route to fe80::1ff:2 or 10.0.0.7:5432", "no route to # or #"),
        ("order ord_8fK2pQ of cus-fk2pq9z is unknown", "order ord_# of cus-# is unknown"),
        ("ULID 01J9ZK3V8Q7MABCDEFGHJKMNPQ is unknown", "ULID # is unknown"),
        ("worker7 of node-17 lost disk3", "worker# of node# lost disk#"),
        ("off by 1.5e-05 after 12s", "off by # after #s"),
        ("no field app.tasks.send in tasks.py", "no field app.tasks.send in tasks.py"),
        ("std::move of a.b.c()", "std::move of a.b.c()"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_taken_out(message: str, expected: str) -> None:
    assert normalised(message) == expected


def test_the_innermost_frame_is_of_the_users_code_and_has_no_line() -> None:
    assert innermost_frame(TRACEBACK) == "mail.py:mail"
    assert innermost_frame(TRACEBACK.replace("line 40", "line 41")) == "mail.py:mail"
    assert innermost_frame('  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode\n') == (
        "decoder.py:decode"
    )
    assert innermost_frame("") == ""


def test_one_cause_has_one_fingerprint() -> None:
    one = fingerprint("send", error("no user 7", traceback=TRACEBACK))
    moved = TRACEBACK.replace("line 40", "line 99").replace("/srv/app", "/opt/release-2")
    assert fingerprint("send", error("no user 8", traceback=moved)) == one
    assert len(one) == FINGERPRINT_LENGTH


def test_other_causes_have_others() -> None:
    found = {
        fingerprint("send", error()),
        fingerprint("post", error()),
        fingerprint("send", error(type_name="ValueError")),
        fingerprint("send", error("no group 7")),
        fingerprint("send", error(traceback=TRACEBACK)),
        fingerprint("send", ErrorInfo(kind="timeout", type="KeyError", message="no user 7")),
        fingerprint("send", None, "max_deliver"),
        fingerprint("send", None, "exhausted"),
    }
    assert len(found) == 8


@each_row(
    "unit",
    ["'", '"', "0x", "a1", "1.", "`x", "deadbeef", "-", "a.", "a1a", "x@", "com.", "::", "a:", "://", "b'"],
)
def test_no_message_takes_long(unit: str) -> None:
    began_at = time.thread_time()
    fingerprint("send", error(unit * 2_000, traceback=f'  File "{unit * 4_000}", line 1, in x\n' * 2))
    assert time.thread_time() - began_at < 0.1
