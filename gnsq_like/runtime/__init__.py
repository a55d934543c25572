"""Greenlets, threads, timers and forks, for all other rooms. Nothing here knows NSQ."""
