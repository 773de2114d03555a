"""Beginning a run again, from a step of it."""
