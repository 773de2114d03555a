"""Commands on jobs, queues and timers."""
