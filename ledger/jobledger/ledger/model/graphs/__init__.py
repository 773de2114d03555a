"""Graphs: what is stored of one, where its nodes take values of a run's input, and graphs under names."""
