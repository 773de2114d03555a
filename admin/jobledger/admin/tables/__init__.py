"""Tables of runs: found, copied to a file, removed."""
