"""Events over HTTP: one reader shared by all live clients, and one reader each for clients that ask for the past."""
