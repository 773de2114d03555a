"""Routes, webhooks and watches: the verbs on their chains, and the secrets that they refer to."""
