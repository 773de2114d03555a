"""Runs: tasks whose steps are recorded one by one, so that another process can go on where one stopped."""
