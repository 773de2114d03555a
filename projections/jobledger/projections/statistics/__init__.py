"""Counts of events of jobs: by queue, task, minute, type of error and worker."""
