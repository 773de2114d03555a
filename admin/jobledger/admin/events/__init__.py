"""Stored events for a reader: which are chosen, and how one is written for a program."""
