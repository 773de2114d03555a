"""Runs: jobs whose task records steps. What their events carry, how steps add up, and which facts follow. Pure."""
