"""Publishing over pipelined acknowledgements, to one nsqd or several; ``facade`` has the overview."""

from gnsq_like.producer.facade import Producer

__all__ = ["Producer"]
