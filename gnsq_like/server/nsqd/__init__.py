"""nsqd: the daemon, its TCP protocol V2, its HTTP API, and its registration with nsqlookupds."""
