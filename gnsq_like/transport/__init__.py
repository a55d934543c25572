"""Byte streams over gevent's sockets."""
