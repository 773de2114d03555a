"""Signals as whoever sends them needs them: the client knows nothing of workflows."""
