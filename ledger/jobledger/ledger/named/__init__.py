"""Adding jobs by the names of their tasks, for processes that do not have the tasks' code."""
