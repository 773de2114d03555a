"""Runs: jobs whose task records steps. The content of their events, and the fold of steps. Pure."""
