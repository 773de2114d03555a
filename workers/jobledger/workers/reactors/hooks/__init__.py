"""The reactor of webhooks: what matches becomes a job. The gateway hosts it; workers do not."""
