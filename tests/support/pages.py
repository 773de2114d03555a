"""Programs of the documentation that a page tells its reader to save."""

from __future__ import annotations

import re
from pathlib import Path

_SAVED = re.compile(r"Save\s+this\s+as\s+`([\w.]+)`.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def save_programs(page: Path, folder: Path) -> int:
    """Save them into a folder under the names that the page gives them; return how many there are."""
    found: list[tuple[str, str]] = _SAVED.findall(page.read_text(encoding="utf-8"))
    for name, text in found:
        (folder / name).write_text(text, encoding="utf-8")
    return len(found)
