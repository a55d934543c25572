"""The HTTP APIs of nsqd and nsqlookupd, on requests.

``nsqd`` and ``nsqlookupd`` hold the two public clients, ``client`` what they share; ``url`` parses addresses and
``decode`` checks responses. ``exchange`` makes a request: it alone imports requests, and is imported at the first one.
"""
