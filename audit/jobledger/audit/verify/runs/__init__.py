"""What a check proves of runs: `step`, `child`, `join`, `wake`, `signal`, `orphan` and `copied`."""
