"""Child processes: how one process starts others, sends them messages, watches them and ends them in any state."""
