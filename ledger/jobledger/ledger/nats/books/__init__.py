"""Buckets that hold what is good to know, and what no decision rests on."""
