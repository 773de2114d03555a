"""The version of jobledger, kept only here: the build reads this file.

A look into the metadata of the installed distribution takes three times as long as the start of an interpreter.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
