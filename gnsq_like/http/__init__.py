"""The HTTP APIs of nsqd and nsqlookupd, on requests.

``nsqd`` and ``nsqlookupd`` hold the two public clients, ``client`` what they share. Below it ``url`` reads
addresses, ``exchange`` makes one request within a deadline (the only module that imports requests, and
itself imported at the first request), ``blocking`` decides in which thread that happens.
"""
