"""What nsqd and nsqlookupd have in common."""
