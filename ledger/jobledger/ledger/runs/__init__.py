"""Runs: tasks whose steps are recorded one by one, so that another process goes on where one stopped."""
