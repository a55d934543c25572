"""Byte streams over gevent's sockets; TLS and the codecs on top of them, as bytes to bytes."""
