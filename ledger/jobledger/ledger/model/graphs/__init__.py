"""Graphs: their stored form, the places that take values of a run's input, and graphs under names."""
