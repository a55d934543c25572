"""What tests of programs that use NSQ need beside the daemons."""

from gnsq_like.testing.proxy import FaultProxy

__all__ = ["FaultProxy"]
