"""What ends a greenlet or the program, and what is a fault of the code that raised it."""

from __future__ import annotations

import asyncio

import gevent
import pytest

from gnsq_like.runtime.ends import ENDS


@pytest.mark.parametrize("kind", [gevent.GreenletExit, KeyboardInterrupt, SystemExit])
def test_ends(kind: type[BaseException]) -> None:
    assert issubclass(kind, ENDS)


@pytest.mark.parametrize("kind", [Exception, gevent.Timeout, asyncio.CancelledError, GeneratorExit, BaseException])
def test_faults(kind: type[BaseException]) -> None:
    assert not issubclass(kind, ENDS)
