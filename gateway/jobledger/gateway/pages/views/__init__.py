"""The facts of each page, as Structs; templates get nothing else."""
