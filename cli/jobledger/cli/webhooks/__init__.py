"""Commands on webhooks that go out."""
