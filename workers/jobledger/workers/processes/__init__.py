"""Child processes: how one process starts others, speaks to them, watches them and ends them, whatever they do."""
