"""What a person can do with routes, webhooks and watches, and see of them."""
