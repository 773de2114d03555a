"""Print those pins of constraints.txt, with their hashes, that a report of `pip install --dry-run` names: for the image.

pip install --dry-run --report report.json ... && python pinned.py constraints.txt report.json > requirements.txt
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def pins(constraints: str) -> dict[str, str]:
    """Return each pin, whole, by the name of its package."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in constraints.splitlines():
        if (pin := re.match(r"([A-Za-z0-9_.-]+)==", line)) is not None:
            name = canonical(pin[1])
        if name and not line.lstrip().startswith("#"):
            found.setdefault(name, []).append(line)
    return {name: "\n".join(lines).rstrip(" \\") for name, lines in found.items()}


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Raises: SystemExit where something would be installed that is not pinned."""
    pinned = pins(Path(sys.argv[1]).read_text(encoding="utf-8"))
    report = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    wanted = sorted({canonical(each["metadata"]["name"]) for each in report["install"]} - {"jobledger"})
    if missing := [each for each in wanted if each not in pinned]:
        sys.exit(f"constraints.txt pins no {', '.join(missing)}: renew it, as docs/adr/003-packaging.md says")
    sys.stdout.write("".join(f"{pinned[each]}\n" for each in wanted))


if __name__ == "__main__":
    main()
