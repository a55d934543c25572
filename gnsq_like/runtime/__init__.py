"""Greenlets, threads and forks: what the client's other rooms run on. Nothing here knows NSQ."""
