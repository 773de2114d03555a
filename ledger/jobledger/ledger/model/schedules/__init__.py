"""Schedules: when they tick, what follows from a tick, and what their events add up to. Pure."""
