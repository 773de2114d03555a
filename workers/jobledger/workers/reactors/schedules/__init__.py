"""What workers do about schedules: tick, declare those of their code, and call their hooks."""
