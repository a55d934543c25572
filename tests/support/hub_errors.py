"""Fails a test for an exception that passes through gnsq_like's code and that gevent's hub prints: of a callback or
timer, of a WSGI application, of a greenlet that gnsq_like spawned.

gevent goes on after it, so that nothing else would notice it. Tasks in thread pools and the tests' own greenlets are
not counted: their results are waited for. What causes one on purpose does so within :func:`expected`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import gevent
import pytest
from gevent.exceptions import HubDestroyed
from gevent.hub import Hub
from greenlet import greenlet

import gnsq_like

_GEVENT = os.path.join(os.path.dirname(gevent.__file__), "")
_PACKAGE = os.path.join(os.path.dirname(gnsq_like.__file__), "")
_ERRORS: list[str] = []
_handle_error = Hub.handle_error


@contextmanager
def expected(name: str) -> Iterator[None]:
    """At least one is printed meanwhile; all must have this in their texts, as "ValueError"."""
    before = len(_ERRORS)
    yield
    found = _ERRORS[before:]
    assert found
    assert [each for each in found if name not in each] == []
    del _ERRORS[before:]


def _note_error(
    self: Any, context: Any, kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> None:
    is_printed = not issubclass(kind, (*self.SYSTEM_ERROR, *self.NOT_ERROR, HubDestroyed))
    if is_printed and not _is_waited_for(context) and _is_of_the_package(trace):
        _ERRORS.append(f"{context!r}\n{''.join(traceback.format_exception(kind, value, trace))}")
    _handle_error(self, context, kind, value, trace)


def _is_of_the_package(trace: TracebackType | None) -> bool:
    return any(frame.f_code.co_filename.startswith(_PACKAGE) for frame, _ in traceback.walk_tb(trace))


def _is_waited_for(context: Any) -> bool:
    """Whether this is a greenlet that a test spawned, or a task in a thread pool."""
    if isinstance(context, tuple):  # of a task: the worker and the function; of a callback: the function and more
        return isinstance(context[0], greenlet)
    if not isinstance(context, gevent.Greenlet):
        return False
    frame = context.spawning_stack
    while frame is not None and frame.f_code.co_filename.startswith(_GEVENT):
        frame = frame.f_back
    return frame is None or not frame.f_code.co_filename.startswith(_PACKAGE)


Hub.handle_error = _note_error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Raise what hubs have met since the test before, in any thread."""
    try:
        return (yield)
    finally:
        found, _ERRORS[:] = _ERRORS[:], []
        if found:
            pytest.fail("printed by gevent's hub:\n" + "\n".join(found), pytrace=False)
