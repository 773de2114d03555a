"""Stored events as whoever asks reads them: which are chosen, and how one is written for a program."""
