"""What can be asked for under `/v1`: structures in, structures out, nothing of HTTP."""
