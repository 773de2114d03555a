"""Unique jobs: what makes them the same, how their keys are taken, and how an enqueue finds the job that holds one."""
