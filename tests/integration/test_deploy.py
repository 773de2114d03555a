"""What deploy/ holds is started, or checked by the program that reads it; each check fails on a planted mistake."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.support.warm import start

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: Where `.ci/run` puts the program that knows Kubernetes' schemas.
VALIDATOR = ROOT / ".cache" / "kubernetes-validate"
LIMIT_S = 150.0


def said(*words: str | Path, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run a program; return all that it said, after it ended with `code`."""
    ran = subprocess.run(
        [str(each) for each in words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=env,
    )
    text = f"{ran.stdout}{ran.stderr}"
    assert ran.returncode == code, text
    return text


def run_compose(file: Path, folder: Path, code: int = 0) -> str:
    return said(sys.executable, DEPLOY / "run_compose.py", file, "--folder", folder, code=code)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", ["compose.yaml", pytest.param("compose.three.yaml", marks=pytest.mark.fault)]
)
def test_a_compose_file_starts_does_a_job_and_stops_twice_on_one_store(name: str, tmp_path: Path) -> None:
    first = run_compose(DEPLOY / name, tmp_path)
    assert "job receipt-7 was made; result: receipt 7" in first
    second = run_compose(DEPLOY / name, tmp_path)
    assert "job receipt-7 was there already; result: receipt 7" in second
    services = [each for each, said in _services(name).items() if "profiles" not in said and each != "init"]
    assert sorted(re.findall(r"^(\S+) stopped with 0", second, re.MULTILINE)) == sorted(services)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('"worker", "--no-reactors"', '"worker", "--no-reaction"', "worker ended with 2"),
        ("depends_on:\n      nats:", "depends_on:\n      nets:", "wait for each other"),
    ],
)
def test_a_mistake_in_a_compose_file_is_told(right: str, wrong: str, words: str, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy" / "compose.yaml"
    text = file.read_text(encoding="utf-8")
    assert right in text
    # A worker that cannot start is to end before anybody gives it up, however slow the machine is.
    patient = text.replace("retries: 4", "retries: 40")
    file.write_text(patient.replace(right, wrong), encoding="utf-8")
    assert words in run_compose(file, tmp_path / "run", code=1)


def test_nothing_in_the_compose_files_is_reachable_from_other_machines() -> None:
    for name in ("compose.yaml", "compose.three.yaml"):
        ports = [port for each in _services(name).values() for port in each.get("ports", ())]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports), ports


def _services(name: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))[
        "services"
    ]
    return found


def test_the_image_has_all_that_the_project_is_built_of(tmp_path: Path) -> None:
    """The Dockerfile's own COPY lines and `pip wheel`, without a container; the image itself needs a runtime."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, target = line.split()
        for each in sources:
            place = tmp_path / target / ("" if target == each else Path(each).name)
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / each, place)
    wheel = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
    )
    said(*wheel, tmp_path / "wheels", tmp_path)
    (made,) = (tmp_path / "wheels").glob("jobledger-*.whl")
    with zipfile.ZipFile(made) as opened:
        held = set(opened.namelist())
    assert {"jobledger/cli/main.py", "jobledger/gateway/app.py", "jobledger/ledger/nats.conf"} <= held


def test_the_pins_of_the_image_are_those_of_the_project(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"install": [{"metadata": {"name": "nats_py"}}, {"metadata": {"name": "jobledger"}}]}')
    found = said(sys.executable, DEPLOY / "pinned.py", ROOT / "constraints.txt", report)
    assert re.fullmatch(r"nats-py==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", found)
    report.write_text('{"install": [{"metadata": {"name": "left-pad"}}]}')
    assert "pins no left-pad" in said(
        sys.executable, DEPLOY / "pinned.py", ROOT / "constraints.txt", report, code=1
    )


def test_the_image_is_built_where_a_runtime_is(tmp_path: Path) -> None:
    del tmp_path
    runtime = next((each for each in ("docker", "podman") if shutil.which(each)), None)
    if runtime is None or subprocess.run([runtime, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no container runtime answers here: the image is not built")
    said(runtime, "build", "-f", DEPLOY / "Dockerfile", "-t", "jobledger", ROOT)


def validated(file: Path, code: int = 0) -> str:
    path = {"PYTHONPATH": str(VALIDATOR)} if VALIDATOR.exists() else {}
    return said(sys.executable, "-m", "kubernetes_validate", "--strict", file, code=code, env=path)


def test_the_manifests_are_what_kubernetes_reads(tmp_path: Path) -> None:
    if not VALIDATOR.exists() and importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip(
            "kubernetes-validate is not here: pip install --target .cache/kubernetes-validate as .ci/run does"
        )
    good = DEPLOY / "kubernetes" / "jobledger.yaml"
    assert validated(good).count(" passed ") == len(
        list(yaml.safe_load_all(good.read_text(encoding="utf-8")))
    )
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        good.read_text(encoding="utf-8").replace("maxUnavailable: 1,", "maxUnavailible: 1,"), encoding="utf-8"
    )
    assert "'maxUnavailible' was unexpected" in validated(bad, code=1)


def test_the_commands_in_the_manifests_are_commands_of_jobledger(tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes" / "jobledger.yaml").read_text(encoding="utf-8")
    manifests: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    pods = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in {"Deployment", "Job"}]
    asked: list[list[str]] = [container["args"] for pod in pods for container in pod["containers"]]
    assert sorted(words[0] for words in asked) == ["gateway", "init", "reactors", "worker"]
    for words in asked:
        helping = start(
            "-m", "jobledger.cli", words[0], "--help", folder=tmp_path, variables=dict(os.environ)
        )
        known, _ = helping.communicate(LIMIT_S)
        assert helping.wait() == 0, words
        assert [word for word in words if word.startswith("--") and word not in known] == []


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: the units are not read")
    for unit in (DEPLOY / "systemd").glob("*.service"):
        text = re.sub(
            r"^(Exec\w+=)\S+", rf"\g<1>{sys.executable}", unit.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        good = tmp_path / unit.name
        good.write_text(text, encoding="utf-8")
        assert said("systemd-analyze", "verify", good) == ""
        good.write_text(text.replace("TimeoutStopSec=", "TimeoutStopSecs="), encoding="utf-8")
        assert "Unknown key" in said("systemd-analyze", "verify", good)
