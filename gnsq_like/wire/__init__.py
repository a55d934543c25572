"""NSQ's TCP protocol V2 without I/O: bytes in, events out.

``names`` checks topic and channel names, ``frames`` cuts what nsqd sends, ``commands`` makes what
clients send, ``requests`` reads it again on the daemons' side, ``negotiated`` reads nsqd's answers to
IDENTIFY and AUTH, ``session`` is one client connection's course from the magic to CLOSE_WAIT. Nothing in
here knows sockets, greenlets, clocks or logging, so that everything in here is tested whole with bytes alone.
"""
