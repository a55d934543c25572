"""Byte streams over gevent's sockets, and what may lie over them: TLS and the codecs, as bytes to bytes."""
