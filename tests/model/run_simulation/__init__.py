"""A seeded simulation of runs: their children, signals, pauses and ends, while every process may die between any two awaits."""
