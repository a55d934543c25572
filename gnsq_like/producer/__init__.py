"""Publishing with pipelined acknowledgements, to one nsqd or several.

``producer`` is what callers use and wait in, ``encoder`` checks and encodes, ``pool`` has the pending publishes and
their deadlines, combines them into batches, chooses the nsqd and decides about retries, ``destinations`` finds nsqds
and connects, a ``publish`` is one command or its copies, the outcome, and how callers wait for it.
"""
