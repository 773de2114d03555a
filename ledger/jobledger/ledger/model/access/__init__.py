"""Who may use the gateway: keys, what they allow, and to which jobs. Pure."""
