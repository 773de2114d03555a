"""The part of a build that writes the commit into the package, for `jobledger --version`; see `jobledger.cli.commit`."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = "cli/jobledger/cli"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the file `COMMIT` into a wheel or a source distribution that is built from a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, but for an editable install, which reads the checkout itself."""
        module = runpy.run_path(str(Path(self.root) / _PACKAGE / "commit.py"))
        commit = module["commit_of"](self.root)
        is_there = (Path(self.root) / _PACKAGE / module["FILE"]).is_file()  # from a source distribution
        if not commit or version == "editable" or is_there:
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / module["FILE"]
        path.write_text(f"{commit}\n", encoding="ascii")
        place = _PACKAGE if self.target_name == "sdist" else _PACKAGE.removeprefix("cli/")
        build_data["force_include"][str(path)] = f"{place}/{path.name}"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove the file that was put in."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
