"""nsqd: the daemon, its TCP protocol V2, its HTTP API, and what it sends to nsqlookupds."""
