"""The reactor of the limits: reads waiting jobs and holders of slots, and grants slots."""
