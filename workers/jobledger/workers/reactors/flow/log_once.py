"""One line in the log for many jobs with the same trouble: a lost connection may mean some hundred of them."""

from __future__ import annotations

import logging


class ToldOnce:
    """Warns of the first failure, and of the next one only after something went well."""

    def __init__(self, logger: logging.Logger, sentence: str) -> None:
        self._logger = logger
        self._sentence = sentence
        self._is_told = False

    def failed(self, *values: object) -> None:
        """Fill the sentence with these values and log it, unless that was done."""
        if not self._is_told:
            self._is_told = True
            self._logger.warning(self._sentence, *values)

    def went_well(self) -> None:
        """Take note that one job had no trouble."""
        self._is_told = False
