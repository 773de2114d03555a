"""The command line: the only reader of environment and arguments; whatever it does, a program can do too."""

from jobledger.cli.main import main

__all__ = ["main"]
