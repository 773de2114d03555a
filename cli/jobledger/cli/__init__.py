"""The command line: the only reader of environment and arguments; whatever it does, a program can do too."""
