"""Buckets with information for people, on which no decision depends."""
