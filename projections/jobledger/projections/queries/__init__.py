"""Queries to a projection: lists, counts and rankings, as frozen Structs ready for JSON."""
