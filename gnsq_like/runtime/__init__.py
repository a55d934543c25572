"""Greenlets, threads, timers, forks and files, for all other rooms. Nothing here knows NSQ."""
