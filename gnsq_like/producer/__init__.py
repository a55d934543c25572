"""Publishing with pipelined acknowledgements, to one nsqd or several.

``producer`` is what callers use and wait in, a ``publish`` one command or its copies, checked and encoded, and the
outcome; ``pool`` has the pending publishes and their deadlines, combines them into batches, chooses the nsqd and
decides about retries, ``destinations`` finds nsqds and connects.
"""
