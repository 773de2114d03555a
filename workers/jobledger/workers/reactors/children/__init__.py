"""The reactor of runs' children: counts their ends, opens the next ones, wakes the run, and ends children left open."""
