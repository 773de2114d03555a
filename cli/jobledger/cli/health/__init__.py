"""Commands on the health of a fleet: doctor, health, metrics."""
