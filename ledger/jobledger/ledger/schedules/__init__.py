"""Schedules as code and people declare them, their chains, and the jobs that their ticks make."""
