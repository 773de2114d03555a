"""Work for schedules: making ticks, declaring the schedules of code, and calling hooks."""
