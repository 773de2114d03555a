"""Routes from the command line: set from a file and by options, shown, tested, processed again; and what is refused."""

from __future__ import annotations

import functools
import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.support.command_line import CommandLine
from tests.support.tables import each_row

from jobledger.ledger import Ledger
from jobledger.ledger.webhooks.receiver import Arrival, Outcome

TOML = """
scheme = "github"
secrets = ["env:GITHUB_SECRET", "file:/run/secrets/github"]
keep_bodies_days = 30

[[rules]]
name = "push"
task = "build"
when = {header = "X-GitHub-Event", is = "push"}
input = {repo = "/repository/name"}

[[rules]]
name = "large"
task = "tell"
queue = "people"
when = {at = "/size", above = 100}
"""
BODY = {"repository": {"name": "shop"}, "size": 7}


@pytest.fixture
def cli(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "github.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "push.json").write_text(json.dumps(BODY), encoding="utf-8")
    return cli


async def _deliver(ledger: Ledger) -> Outcome:
    headers = {"x-github-event": "push"}
    arrival = Arrival(body=msgspec.json.encode(BODY), headers=headers, given="d1", scheme="github", secret=2)
    return await ledger.routes.receive(await ledger.routes.get("github"), arrival)


def told(cli: CommandLine, *words: str) -> str:
    found = cli.run("routes", *words, *cli.where)
    assert found.code == 0, found
    return found.out


def test_a_person_sets_shows_and_tests_a_route_and_sees_what_came_in(cli: CommandLine) -> None:
    run = functools.partial(told, cli)
    assert "no route is set" in run("list")
    planned = run("set", "github", "--file", "github.toml", "--plan")
    assert planned == "route github would be github: push -> build, large -> tell\nnothing was changed\n"
    assert run("set", "github", "--file", "github.toml", "--reason", "new").startswith(
        "route github is github:"
    )
    assert run("set", "github", "--file", "github.toml").startswith("route github is as it was:")
    assert run("list").splitlines()[2].split()[:3] == ["github", "github", "2"]
    shown = run("show", "github")
    assert "/in/github" in shown
    assert "env:GITHUB_SECRET, file:/run/secrets/github" in shown
    assert '{"header":"X-GitHub-Event","is":"push"}' in shown
    assert "set github, 2 rules: new, by" in shown

    tried = run("test", "github", "--body", "push.json", "--header", "X-GitHub-Event=push")
    assert "it would make 1 job; nothing was made" in tried
    assert '{"repo":"shop"}' in tried
    assert (
        run("test", "github", "--body", "push.json")
        == "no rule holds: it would be recorded, and make no job\n"
    )
    assert run("deliveries") == "nothing came in\n"
    assert run("deliveries", "githup") == "nothing came in at route githup\n"

    made = cli.with_ledger(_deliver)
    assert run("deliveries", "github").splitlines()[2].split()[:5] == [
        "github",
        "d1",
        "github,",
        "secret",
        "2",
    ]
    assert run("deliveries", "--unmatched") == "nothing came in that made no job\n"
    assert "it would make 1 job" in run("test", "github", "--id", "d1")
    again = run("retry", "github", "d1", "--reason", "once more")
    assert f"{made.matched[0].queue}/{made.matched[0].job}-r1" in again
    one = run("deliveries", "github", "--id", "d1")
    assert "github, secret 2" in one
    assert "retried by" in one
    assert ": once more" in one
    assert one.count(made.matched[0].job) == 2


def test_a_person_changes_a_route_by_options_and_removes_it(cli: CommandLine) -> None:
    run = functools.partial(told, cli)
    run("set", "github", "--file", "github.toml")
    run("set", "github", "--secret", "env:NEW", "--secret", "env:GITHUB_SECRET", "--keep-days", "0")
    (said,) = cli.run("routes", "show", "github", "--json", *cli.where).lines
    assert said["definition"]["secrets"] == ["env:NEW", "env:GITHUB_SECRET"]
    assert said["definition"]["keep_bodies_days"] == 0
    assert len(said["definition"]["rules"]) == 2
    run("set", "orders", "--scheme", "internal", "--task", "pack", "--when", '{"at": "/a", "is": 1}')
    noted = cli.run("routes", "set", "orders", "--tolerance", "1m", *cli.where).err
    assert "no worker has ever had pack: such jobs go to the queue default" in noted
    (listed,) = [
        row for row in cli.run("routes", "list", "--json", *cli.where).lines if row["name"] == "orders"
    ]
    assert listed["definition"]["rules"] == [
        {"name": "pack", "task": "pack", "when": {"at": "/a", "is": 1}, "input": {"*": "/"}}
    ]
    assert run("remove", "github", "--reason", "old") == "route github is removed\n"
    assert run("list").splitlines()[2].split()[0] == "orders"
    assert "removed" in run("show", "github")
    assert run("list", "--sequence", str(said["sequence"])).splitlines()[-1].split()[0] == "github"


@each_row(
    "words, code, sentence",
    [
        (["set", "x"], 2, "say what the route does: by --file FILE, or by options"),
        (["set", "x", "--file", "github.toml", "--task", "t"], 2, "by --file FILE, or by options"),
        (["set", "x", "--task", "t"], 2, "say --scheme, how its requests are proven"),
        (["set", "x", "--scheme", "gitlab", "--secret", "env:S"], 2, "there is no scheme 'gitlab'"),
        (["set", "x", "--scheme", "github", "--secret", "hunter2"], 2, "is no reference to a secret"),
        (["set", "x", "--scheme", "github"], 2, "the route has 0 secrets: give 1 to 8"),
        (["set", "x", "--queue", "q"], 2, "name the task"),
        (["set", "x.y", "--scheme", "internal"], 2, "route 'x.y' is not valid"),
        (["set", "x", "--file", "push.json"], 2, "the definition of the route is not as it must be"),
        (["set", "x", "--file", "nothing.json"], 1, "nothing.json: No such file"),
        (
            ["set", "x", "--scheme", "internal", "--task", "t", "--when", "{"],
            2,
            "the JSON of --when is not valid",
        ),
        (["show", "x"], 3, "there is no route 'x'; `jobledger routes list` shows"),
        (["remove", "x"], 3, "there is no route 'x'"),
        (["test", "x"], 2, "say what to try: a delivery that was kept, or a body"),
        (["test", "x", "--body", "push.json"], 3, "there is no route 'x'"),
        (["test", "x", "--id", "d1"], 3, "route x has no delivery 'd1'"),
        (["retry", "x", "d1"], 3, "there is no route 'x'"),
        (["deliveries", "--id", "d1"], 2, "--id needs the route"),
        (["deliveries", "x", "--id", "d1"], 3, "route x has no delivery 'd1'"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_in_a_sentence_and_nothing_is_changed(
    cli: CommandLine, words: list[str], code: int, sentence: str
) -> None:
    found = cli.run("routes", *words, *cli.where)
    assert (found.code, sentence in found.err) == (code, True), found
    assert "hunter2" not in found.err
    assert "Traceback" not in found.err


def test_what_the_page_on_webhooks_shows_can_be_set(cli: CommandLine, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ jobledger (routes set .*)$", page, flags=re.MULTILINE)
    assert cli.run(*shlex.split(line), *cli.where).out.startswith("route github is github: build -> build")
    (block,) = re.findall(r'^```json\n(\{"scheme".*?)^```$', page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.json").write_text(block, encoding="utf-8")
    assert cli.run("routes", "set", "shop", "--file", "shop.json", *cli.where).code == 0
    body = '{"event": {"type": "paid", "order": "77"}, "total": 5}'
    (tmp_path / "paid.json").write_text(body, encoding="utf-8")
    tried = cli.run(
        "routes", "test", "shop", "--body", "paid.json", "--header", "X-Shop-Kind=web", "--json", *cli.where
    )
    assert [each["input"] for each in tried.lines] == [{"order": "77", "source": "shop", "kind": "web"}]
