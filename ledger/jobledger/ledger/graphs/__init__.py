"""Graphs and batches: what they are made of, who begins them, and the built-in workflows that they are runs of."""
