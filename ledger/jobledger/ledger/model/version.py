"""The version of jobledger, kept here alone: the build reads this file.

To ask the installed distribution's metadata takes three times as long as an interpreter's start.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
