"""What happened to jobs, counted: by queue, task, minute, type of error and worker."""
