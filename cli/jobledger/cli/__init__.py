"""The command line: the only reader of environment and arguments; a program can do everything that it does."""
