"""Write the pages that follow from the code: docs/code.md (`make docs`); with `--check` only compare them."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ROOTS: Final = tuple(
    name for name in ("ledger", "audit", "projections", "workers", "admin", "cli") if (ROOT / name).is_dir()
)
_BEGIN: Final = "<!-- from here on written by docs/generate.py -->\n"


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path.relative_to(ROOT)} has no docstring"
    return text.partition("\n")[0].replace("|", "\\|")


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("__init__"))


def _packages(folder: Path) -> Iterator[Path]:
    yield folder
    for below in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _packages(below)


def _section(package: Path) -> Iterator[str]:
    name = package.relative_to(ROOT).as_posix()
    title = ".".join(("jobledger", *package.relative_to(ROOT).parts[2:]))
    yield f"\n## {title}\n\n{textwrap.fill(_first_line(package / '__init__.py'), 100)}\n"
    modules = _modules(package)
    if modules:
        yield "\n| Module | What it holds |\n|---|---|\n"
        yield from (f"| [{path.stem}](../{name}/{path.name}) | {_first_line(path)} |\n" for path in modules)


def code_page() -> str:
    """Return docs/code.md: its written beginning, then every package and module with its first sentence."""
    written, _, _ = (ROOT / "docs" / "code.md").read_text(encoding="utf-8").partition(_BEGIN)
    sections = (
        part
        for root in ROOTS
        for package in _packages(ROOT / root / "jobledger" / root)
        for part in _section(package)
    )
    return written + _BEGIN + "".join(sections)


def main() -> int:
    """Write what differs; with `--check` name it and return 1."""
    pages = {ROOT / "docs" / "code.md": code_page()}
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)} differs from the code\n")
        if "--check" not in sys.argv:
            path.write_text(pages[path], encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stdout.write("run `make docs` and commit what it wrote\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
