"""Schedules: their ticks, the jobs of a tick, and the fold of their events. Pure."""
