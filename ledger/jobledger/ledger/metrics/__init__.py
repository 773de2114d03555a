"""Metrics as text for Prometheus, and the small server that hands them out."""
