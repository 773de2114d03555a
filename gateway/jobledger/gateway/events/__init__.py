"""Events over HTTP: one live reader for all who look, and a reader of their own for those who ask for the past."""
