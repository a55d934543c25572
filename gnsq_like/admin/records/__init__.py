"""What the admin writes and sends: the audit log of actions, and webhooks."""
