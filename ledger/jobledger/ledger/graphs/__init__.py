"""Graphs and batches as those who begin them need them: the client knows nothing of workflows."""
