"""The HTTP APIs of nsqd and nsqlookupd, on requests.

``nsqd`` and ``nsqlookupd`` hold the two public clients, ``client`` their base, with the checks of responses.
``exchange`` makes a request; only it imports requests, and it is imported at the first request.
"""
