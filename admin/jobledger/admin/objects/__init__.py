"""What a person or a program is shown, as one Struct for each answer: the command line's `--json`, HTTP and pages give these."""
