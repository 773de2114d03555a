"""deploy/ speaks of the metrics that exist, with the labels that they have; promtool runs the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import each_row

from jobledger.gateway.process.counters import GATEWAY_METRICS
from jobledger.ledger.metrics.exposition import Measure
from jobledger.ledger.outbox.metrics import OUTBOX_METRICS
from jobledger.projections.metrics.names import EXPORTER_METRICS
from jobledger.workers.metrics import WORKER_METRICS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
RULES_TESTS = ("alerts_test.yml", "alerts_hours_test.yml")
RULES_TEST = "".join((PROMETHEUS / name).read_text(encoding="utf-8") for name in RULES_TESTS)
DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy" / "grafana" / "jobledger.json").read_text(encoding="utf-8")
)
MEASURES = (*EXPORTER_METRICS, *WORKER_METRICS, *GATEWAY_METRICS, *OUTBOX_METRICS)
METRICS = {measure.name: measure for measure in MEASURES}
#: Labels that every target has, or that whoever scrapes may give it.
TARGET = {"instance", "job", "pod", "environment"}
OF_INFO = {"version", "ledger_environment", "worker"}
FUNCTIONS = {
    *("absent", "count", "deriv", "histogram_quantile", "increase", "label_values"),
    *("max", "max_over_time", "min", "predict_linear", "rate", "sum", "time", "topk", "vector"),
}
GROUPING = {"by", "without", "on", "ignoring"}
OPERATORS = {"and", "or", "unless", "bool"}
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<name>[A-Za-z_]\w*)|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/=<>(){},])|(?P<space>\s+)|(?P<wrong>.)"
)


def test_every_metric_has_a_name_by_the_conventions() -> None:
    assert len(METRICS) == len(MEASURES)
    for measure in METRICS.values():
        assert re.fullmatch(r"jobledger_[a-z]+(_[a-z]+)*", measure.name)
        assert measure.name.endswith("_total") == (measure.kind == "counter")
        assert measure.name.endswith("_info") == (measure.kind == "info")
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mib|percent|count|sum|bucket)\b", measure.name)
        assert measure.help.endswith(".")


def _rules() -> dict[str, str]:
    """Return alert -> expression; the file keeps to a form that needs no YAML parser."""
    found: dict[str, str] = {}
    for block in RULES.split("- alert: ")[1:]:
        name, _, rest = block.partition("\n")
        match = re.search(r"expr: (>-\n(?:          .*\n)+|.*\n)", rest)
        assert match is not None, name
        found[name] = " ".join(match[1].removeprefix(">-").split())
    return found


def _panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


EXPRESSIONS = [*_rules().items(), *_panels()]


def _sample_names(measure: Measure) -> set[str]:
    if measure.kind == "histogram":
        return {f"{measure.name}_{part}" for part in ("bucket", "sum", "count")}
    return {measure.name}


SAMPLES = {name: measure for measure in METRICS.values() for name in _sample_names(measure)}


def check_promql(text: str) -> set[str]:
    """Return the metrics of an expression after checking its words: names, labels, brackets, functions."""
    used: set[str] = set()
    labels_used: set[str] = set()
    closing: list[str] = []
    last = ""
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token[0]
        assert kind != "wrong", f"{word!r} in {text}"
        if kind == "space":
            continue
        if word in ("(", "{"):
            closing.append("labels" if word == "{" or last in GROUPING else ")")
        elif word in (")", "}"):
            assert closing, text
            assert (closing.pop() == ")") <= (word == ")"), text
        elif kind == "name" and closing and closing[-1] == "labels":
            labels_used.add(word)
        elif kind == "name" and word in SAMPLES:
            used.add(word)
        elif kind == "name":
            assert word in FUNCTIONS | GROUPING | OPERATORS, f"{word!r} in {text}"
        last = word
    assert not closing, text
    assert used, text
    known = set[str]().union(*(SAMPLES[name].labels for name in used)) | TARGET
    known |= {"le"} if any(name.endswith("_bucket") for name in used) else set()
    known |= OF_INFO if any(name.endswith("_info") for name in used) else set()
    assert labels_used <= known, f"{labels_used - known} in {text}"
    return used


@each_row(("title", "expression"), EXPRESSIONS, ids=lambda value: str(value)[:40])
def test_queries_use_only_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    used = check_promql(expression)
    for name in used:
        counts = SAMPLES[name].kind in ("counter", "histogram")
        over_time = re.search(rf"\b(rate|increase)\({name}\b", expression) is not None
        assert over_time == counts, f"{title}: {name}"


@each_row(
    "wrong",
    [
        "jobledger_queue_job > 1",
        "sum(jobledger_queue_jobs",
        'jobledger_queue_jobs{task="x"}',
        "sum by (task) (jobledger_queue_jobs)",
        "summ(jobledger_queue_jobs)",
        "rate(jobledger_job_wait_seconds[5m])",
        "jobledger_queue_jobs[5x]",
        "1 + 1",
    ],
)
def test_the_check_of_queries_sees_what_is_wrong(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_promql(wrong)


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set[str]().union(*(check_promql(expression) for _, expression in _panels()))
    assert {SAMPLES[name].name for name in shown} == set(METRICS)


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == [
        "datasource",
        "environment",
        "queue",
        "task",
    ]
    for each in DASHBOARD["templating"]["list"][1:]:
        check_promql(re.sub(r"label_values\((.*), \w+\)", r"\1", each["definition"]))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            references = [target["refId"] for target in panel["targets"]]
            assert len(set(references)) == len(references) > 0


def test_every_alert_is_tested_firing_and_has_a_severity_and_words() -> None:
    for name in _rules():
        block = RULES.split(f"- alert: {name}\n")[1].split("- alert: ")[0]
        assert re.search(r"severity: (critical|warning|info)\n", block), name
        assert "summary: " in block, name
        assert "description: " in block, name
        fires = re.search(rf"alertname: {name}\n        exp_alerts:\n          - exp_labels", RULES_TEST)
        assert fires is not None, f"{name} never fires in {RULES_TESTS}"


def _promtool(*words: str) -> None:
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    ran = subprocess.run(
        [binary, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_finds_every_alert_firing_as_written() -> None:
    _promtool("test", "rules", *RULES_TESTS)


def test_promtool_takes_the_configuration_and_rules() -> None:
    _promtool("check", "config", "prometheus.yml")


def test_promtool_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, (_, expression) in enumerate(_panels()):
        expr = expression.replace("$__rate_interval", "5m")
        lines += [f"      - record: panel:number:{number}", f"        expr: {json.dumps(expr)}"]
    path = tmp_path / "dashboard.yml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _promtool("check", "rules", str(path))
