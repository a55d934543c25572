"""The exceptions that end a greenlet or the program, and say nothing about the code they pass through.

Everything else that a user's function raises is a fault of it, also where it is no Exception: gevent.Timeout,
asyncio.CancelledError, GeneratorExit, or what pytest.fail raises.
"""

from __future__ import annotations

from gevent import GreenletExit

ENDS = (GreenletExit, KeyboardInterrupt, SystemExit)
