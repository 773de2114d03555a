"""Commands on tables of runs."""
