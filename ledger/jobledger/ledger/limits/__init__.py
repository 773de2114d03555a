"""Limits as an application declares them: `Limit` and `Queue`, the keys of a job, and the writing of definitions."""
