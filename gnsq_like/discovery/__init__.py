"""Finds nsqds (``lookupd_poller``), and decides when each address is dialled (``dialler``)."""
