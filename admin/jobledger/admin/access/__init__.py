"""What a person does with keys of the gateway."""
