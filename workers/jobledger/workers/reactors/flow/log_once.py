"""One line in the log for many jobs with the same trouble: a lost connection may affect some hundred jobs."""

from __future__ import annotations

import logging


class ToldOnce:
    """Warns of the first failure, and of a later one only after a success."""

    def __init__(self, logger: logging.Logger, sentence: str) -> None:
        self._logger = logger
        self._sentence = sentence
        self._is_told = False

    def failed(self, *values: object) -> None:
        """Log the sentence with these values, unless a failure was logged already."""
        if not self._is_told:
            self._is_told = True
            self._logger.warning(self._sentence, *values)

    def went_well(self) -> None:
        """Note that one job had no trouble."""
        self._is_told = False
