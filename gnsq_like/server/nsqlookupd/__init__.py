"""nsqlookupd: the daemon, its TCP protocol V1, its HTTP API and its registry."""
