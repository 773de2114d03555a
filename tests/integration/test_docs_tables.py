"""Tables and limits in the documentation are those of the code."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import tomllib
from pathlib import Path

import nats.aio.client
import nats.aio.subscription
from tests.support.limits import LIMIT_S
from tests.support.warm import start

import jobledger.ledger
from jobledger.ledger import LedgerConfig
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.json_text import DEPTH_MAX
from jobledger.ledger.options import MAX_ATTEMPTS_DEFAULT
from jobledger.workers import WorkerConfig

ROOT = Path(__file__).parents[2]
_PAGES_WITH_LIMITS = ("guarantees.md", "operations.md", "tasks.md")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Tables that are compared with the code.


def _table(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading, without its two head lines."""
    text = page.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert section is not None, f"{_name(page)} has no section {heading!r}"
    table = re.search(r"(?:^\|.*\n)+", section[1], flags=re.MULTILINE)
    assert table is not None, f"{_name(page)} has no table in its section {heading!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_every_state_is_described() -> None:
    rows = _table(ROOT / "docs" / "lifecycle.md", "States")
    assert [row[0].strip("`") for row in rows] == [state.value for state in JobState]


# A word on each page that only the generator writes.
_WRITTEN_BY_THE_GENERATOR = {
    "cli.md": "- `--since-seal`: Begin at the newest seal of --seal",
    "code.md": "| [ledger.model](",
    "events.md": "| `lease_s` | number |",
    "lifecycle.md": "| `dead_lettered` | `held` `queued` `discarded`",
    "locks.md": "- Subject: `ledger.lock.<scope>.<lock>.acquired`",
    "metrics.md": "| `jobledger_worker_running` | gauge |",
    "operations.md": "| `request_timeout_s` | 5 s |",
    "performance.md": "| nats-server alone |",
    "projections.md": "| `id` | text | the job's id, unique within its queue |",
    "diagrams/architecture.svg": ">gateway</text>",
    "diagrams/held-granted-queued.svg": ">granted</text>",
    "diagrams/life-of-a-job.svg": ">dead_lettered</text>",
    **{
        f"diagrams/performance-{name}.svg": ">jobledger</text>" for name in ("bulk", "single", "drain", "cpu")
    },
}


def _generate(docs: Path, *options: str) -> tuple[int, str]:
    """Run the generator as `make docs` does, but for the start of an interpreter: that is a test of the layout's."""
    ran = start(str(docs / "generate.py"), *options, folder=docs, variables=dict(os.environ))
    out, errors = ran.communicate(limit_s=LIMIT_S)
    return ran.wait(), out + errors


def test_every_error_that_applications_import_is_on_its_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    exported = [name for name in jobledger.ledger.__all__ if name.endswith(("Error", "Warning"))]
    assert [name for name in exported if f"`{name}`" not in page and f"### {name}\n" not in page] == []


def _copy(folder: Path) -> Path:
    """Return a copy of the docs beside links to the code."""
    docs = Path(shutil.copytree(ROOT / "docs", folder / "docs"))
    for root in (
        "ledger",
        "audit",
        "projections",
        "workers",
        "admin",
        "gateway",
        "cli",
        "testing",
        "benchmarks",
    ):
        (folder / root).symlink_to(ROOT / root)
    return docs


def test_a_page_that_differs_is_named_and_written_again_around_what_people_wrote(tmp_path: Path) -> None:
    """That the pages of this checkout do not differ is a test of the layout's."""
    docs = _copy(tmp_path)
    page, following = docs / "cli.md", "## jobledger graphs remove\n"
    kept = {name: (docs / name).read_text(encoding="utf-8") for name in _WRITTEN_BY_THE_GENERATOR}
    for name, word in _WRITTEN_BY_THE_GENERATOR.items():
        assert word in kept[name]
        (docs / name).write_text(kept[name].replace(word, word[:-1]), encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(following, f"<!-- end -->\n\nMine.\n{following}"), encoding="utf-8")
    code, said = _generate(docs, "--check")
    assert (code, re.findall(r"docs/(\S+) differs", said)) == (1, [*_WRITTEN_BY_THE_GENERATOR]), said
    assert _generate(docs)[0] == 0
    written = {name: (docs / name).read_text(encoding="utf-8") for name in kept}
    assert {name for name in kept if written[name] != kept[name]} == {"cli.md"}
    assert _WRITTEN_BY_THE_GENERATOR["cli.md"] in written["cli.md"]
    own = f"Mine.\n\n<!-- commands: written by docs/generate.py -->\n{following}"
    assert own in written["cli.md"]
    assert _generate(docs, "--check") == (0, "")
    page.write_text(
        written["cli.md"].replace("## jobledger graphs show\n", "## jobledger graphs view\n"),
        encoding="utf-8",
    )
    code, said = _generate(docs)
    assert (code, "commands that do not exist: ['jobledger graphs view']" in said) == (1, True), said


def test_limits_in_the_docs_are_the_defaults() -> None:
    ledger, worker = LedgerConfig(), WorkerConfig()
    said = {
        page: " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
        for page in _PAGES_WITH_LIMITS
    }
    assert f"Input or result inside the event | {ledger.inline_bytes_max >> 10} KiB" in said["tasks.md"]
    assert f"Input or result at all | {ledger.payload_bytes_max >> 20} MiB" in said["tasks.md"]
    assert f"Nesting | {DEPTH_MAX} levels" in said["tasks.md"]
    assert f"`max_attempts` | {MAX_ATTEMPTS_DEFAULT} |" in said["tasks.md"]
    assert f"({worker.concurrency} by default)" in said["tasks.md"]
    assert f"{ledger.enqueue_in_flight_max:,} appends" in said["tasks.md"]
    assert f"a limit of {ledger.ledger_bytes_max >> 30} GiB" in said["operations.md"]
    assert f"`--grace` seconds ({worker.grace_s:g})" in said["operations.md"]
    assert (
        f"one lease, {ledger.lease_s:g} s by default, renewed every {ledger.lease_s / 3:g} s"
        in said["guarantees.md"]
    )
    assert f"Only if that fails for {ledger.append_timeout_s:g} s" in said["guarantees.md"]
    assert (
        f"give up after {ledger.request_timeout_s:g} s (`request_timeout_s`; 20 s on a"
        in said["guarantees.md"]
    )


def test_the_extras_on_the_first_page_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert [*listed, "dev"] == list(project["optional-dependencies"])


def test_the_private_names_of_nats_py_are_those_on_record() -> None:
    """ADR 004 lists what a new version of nats-py could take away."""
    record = (ROOT / "docs" / "adr" / "004-own-hot-paths-on-nats-py.md").read_text(encoding="utf-8")
    paragraph = record.partition("**Private names")[2].partition("\n\n")[0]
    source = (ROOT / "ledger" / "jobledger" / "ledger" / "nats" / "connection.py").read_text(encoding="utf-8")
    tree = list(ast.walk(ast.parse(source)))
    used = {node.attr for node in tree if isinstance(node, ast.Attribute)}
    used |= {
        node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }  # stand in
    theirs = {*vars(nats.aio.client.Client()), *vars(nats.aio.client.Client)}
    private = {name for name in used & theirs if re.match(r"_[a-z]", name)}
    subscription = (
        {"_id"} & used & set(inspect.signature(nats.aio.subscription.Subscription).parameters | {"_id": 0})
    )
    assert private | subscription == set(re.findall(r"`(_\w+)`", paragraph))
