"""What a person does to whole queues."""
