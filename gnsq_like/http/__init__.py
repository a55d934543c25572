"""The HTTP APIs of nsqd and nsqlookupd, on urllib3.

``nsqd`` and ``nsqlookupd`` hold the two public clients, ``client`` what they share; ``url`` parses addresses and
``decode`` checks responses. ``exchange`` makes a request: it alone imports urllib3, and is imported at the first one.
"""
