"""Measure the source: lines, fields, imports and docstrings by root, public classes, and names that say no thing.

    python tools/measure.py [FOLDER ...]

Lines of the files are counted with comments and blank lines. A share is a part of these. A public class begins with no
underscore.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
ROOTS: Final = ("ledger", "audit", "projections", "workers", "admin", "gateway", "cli", "testing")
_PARTICIPLE: Final = re.compile(
    r"_?((?!Heading|Setting|Tracing)[A-Z][a-z]+ing|[A-Z][a-z]*(?<!e)ed|Told|Kept|Said|Found|Shown|Sent|Given|Held|Known|Chosen|Made|Ran|Seen|Begun|Drawn|Taken)"
)
_GERUND: Final = re.compile(r"[a-z]+(?<!str)(?<!\br)(?<!trac)ing")


class Figures(NamedTuple):
    """Counts for some files."""

    files: int
    lines: int
    fields: int  #: lines of class fields and of constants
    imports: int
    docstrings: int
    public_classes: int
    participles: tuple[str, ...]  #: `path: class`, except events
    gerunds: tuple[str, ...]  #: paths of modules


def _lines_of(nodes: Iterable[ast.stmt]) -> int:
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def _docstrings(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first


def _is_event(node: ast.ClassDef) -> bool:
    """Return whether a class is a past fact, or a message between processes: only these have participles as names."""
    return any(each.arg in {"tag", "tag_field"} for each in node.keywords)


def measure(paths: Iterable[Path]) -> Figures:
    """Count in files."""
    files = lines = fields = imports = docstrings = public = 0
    participles: list[str] = []
    gerunds: list[str] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree, name = ast.parse(text), path.relative_to(ROOT).as_posix()
        nodes = list(ast.walk(tree))
        classes = [each for each in nodes if isinstance(each, ast.ClassDef)]
        files, lines = files + 1, lines + text.count("\n")
        imports += _lines_of(each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom))
        fields += _lines_of(
            each
            for body in (tree.body, *(each.body for each in classes))
            for each in body
            if isinstance(each, ast.AnnAssign | ast.Assign)
        )
        docstrings += _lines_of(_docstrings(tree))
        public += sum(not each.name.startswith("_") for each in classes)
        participles += (
            f"{name}: {each.name}"
            for each in classes
            if _PARTICIPLE.fullmatch(each.name) and not _is_event(each)
        )
        if _GERUND.fullmatch(path.stem):
            gerunds.append(name)
    return Figures(files, lines, fields, imports, docstrings, public, tuple(participles), tuple(gerunds))


def main(folders: list[str]) -> None:
    """Print a line for each root, and the names."""
    rows = {name: measure(sorted((ROOT / name).rglob("*.py"))) for name in folders or ROOTS}
    total = measure(path for name in rows for path in sorted((ROOT / name).rglob("*.py")))
    print(f"{'root':12}{'files':>7}{'lines':>9}{'fields':>9}{'imports':>9}{'docstrings':>12}{'classes':>9}")
    for name, found in {**rows, "together": total}.items():
        parts = (found.fields, found.imports, found.docstrings)
        shares = [f"{part / max(1, found.lines):.1%}" for part in parts]
        print(
            f"{name:12}{found.files:>7,}{found.lines:>9,}{shares[0]:>9}{shares[1]:>9}{shares[2]:>12}"
            f"{found.public_classes:>9,}"
        )
    for what, names in (("participle", total.participles), ("gerund", total.gerunds)):
        print(f"\n{len(names)} named by a {what}")
        for each in names:
            print(f"  {each}")


if __name__ == "__main__":
    main(sys.argv[1:])
