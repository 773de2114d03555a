"""Runs in a worker: how the steps of a workflow's code become events, and how a run that waits leaves its slot."""
