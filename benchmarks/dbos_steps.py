"""How long DBOS takes for a step that does nothing; run by `against_dbos.py` with a Python that has DBOS.

python -P benchmarks/dbos_steps.py DATABASE_URL STEPS
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def number(value: int) -> int:
    """Do nothing."""
    return value


def measure(url: str, steps: int) -> float:
    """Return ms a step of one workflow, after another one to warm up."""
    dbos: Any = importlib.import_module("dbos").DBOS  # no other program of ours has it
    step = dbos.step()(number)

    def count(steps: int) -> float:
        began = time.perf_counter()
        for value in range(steps):
            step(value)
        return time.perf_counter() - began

    flow = dbos.workflow()(count)
    dbos(
        config={
            "name": "steps",
            "system_database_url": url,
            "run_admin_server": False,
            "log_level": "WARNING",
        }
    )
    dbos.launch()
    flow(max(1, steps // 10))
    took_s: float = flow(steps)
    dbos.destroy()
    return took_s / steps * 1e3


if __name__ == "__main__":
    print(json.dumps({"ms": measure(sys.argv[1], int(sys.argv[2]))}))
