"""What a person does to routes, webhooks and watches, and sees of them."""
