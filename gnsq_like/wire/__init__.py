"""NSQ's TCP protocol V2 without I/O: bytes in, events out.

``names`` checks topic and channel names, ``frames`` decodes what nsqd sends, ``commands`` encodes what clients send,
``negotiated`` reads nsqd's replies to IDENTIFY and AUTH, ``session`` is the state machine of one client connection.
Nothing here uses sockets, greenlets, clocks or logging, so all of it is tested with bytes alone.
"""
