"""Commands that tell whether all is well: doctor, metrics."""
