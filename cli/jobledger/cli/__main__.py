"""`python -m jobledger.cli`: the same as the command `jobledger`."""

from jobledger.cli.main import main

if __name__ == "__main__":
    main()
