"""The control loop of a Reader or Producer: a greenlet that acts on events and deadlines.

An *action* is a function without arguments that never switches. It is called soon (``soon``), or at a time (``by``);
several requests of one kind before the call make one call. So the cost of a wake depends on the events, not on the
number of connections. Once a second, ``look`` checks everything, and so makes up for work that an exception has
interrupted.

An exception that escapes an action, a ``gevent.Timeout`` included, is logged, and the loop continues. KeyboardInterrupt
and SystemExit reach the main greenlet as from any greenlet of gevent, and the loop goes on. GreenletExit ends it.

Rules for editors: wake the greenlet only by its ``switch``, never by a Python callback in the hub, so that what
interrupts it comes up here, and not in the hub. The greenlet waits in one place only, so it does not matter what has
woken it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import gevent
from gevent import GreenletExit

from gnsq_like.runtime import owner
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import InnerGreenlet
from gnsq_like.runtime.timer import LEAST_TIMEOUT, Soon, make_timer

logger = logging.getLogger(__name__)

Action = Callable[[], object]

#: Seconds between two looks at everything.
_EVERY = 1.0
#: Seconds by which a look must be late to be reported; the shortest heartbeat interval is a second.
_LATE = 1.0


class ControlLoop:
    """Calls the actions of its owner, in the hub of :meth:`start`. All methods never switch.

    :param name: of the owner, for the log
    :param look: called at the start and once a second: looks at everything
    """

    def __init__(self, name: str, look: Action) -> None:
        self._name = name
        self._look = look
        #: Actions asked for.
        self._asked: dict[Action, None] = {}
        #: When actions are due: a few.
        self._times: dict[Action, float] = {}
        #: Seconds by which the action that is called is late, because the hub was busy; 0 for one that had no time.
        self.late = 0.0
        #: Monotonic time of the last look.
        self._looked_at = -math.inf
        self._reports_late = True
        self._stopped = False
        #: True as a condition once it is started, and until its end.
        self._greenlet: Any = None
        #: Exceptions that escaped a turn, and are not reported yet.
        self._escaped: BaseException | None = None
        #: Wakes the greenlet in the hub's next iteration; None before the start, and after the end.
        self._wake: Any = None
        #: Whether the greenlet is there to be woken.
        self._has_begun = False
        #: Wakes it once a second, and at the earliest time of an action.
        self._seconds: Any = None
        self._timer: Any = None
        self._timer_at = 0.0

    def start(self) -> None:
        """Begin, if it has not begun and is not stopped. Next: :meth:`stop`."""
        if self._greenlet or self._stopped:
            return
        loop = gevent.get_hub().loop
        self._greenlet = InnerGreenlet(self._run)
        self._greenlet.rawlink(self._ended)
        self._wake = Soon(loop, self._greenlet.switch)
        self._seconds = loop.timer(_EVERY, _EVERY)
        self._greenlet.start()

    def _ended(self, greenlet: gevent.Greenlet) -> None:
        """Begin again, if an exception came before the first turn, or while another one was caught. Never switches."""
        self._close()
        if greenlet.exception is not None:
            self.start()

    def stop(self) -> None:
        """Call nothing more; twice is fine."""
        self._stopped = True
        self._close()
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def abandon(self) -> None:
        """As :meth:`stop`, in a forked child, which does not run the parent's greenlet."""
        self._stopped = True
        self._close()
        owner.keep(self._greenlet)

    def soon(self, action: Action) -> None:
        """Call this in the hub's next iteration."""
        self._asked[action] = None
        if self._has_begun:
            self._wake()

    def by(self, when: float, action: Action) -> None:
        """Call this at a monotonic time, or at an earlier one that was given before."""
        earlier = self._times.get(action)
        if earlier is None or when < earlier:
            self._times[action] = when
            self._arm()

    def cancel(self, action: Action) -> None:
        """Do not call this, if it was to be called."""
        self._asked.pop(action, None)
        self._times.pop(action, None)

    def is_asked_for(self, action: Action) -> bool:
        """Whether this is to be called in the hub's next iteration."""
        return action in self._asked

    # -- in the greenlet ----------------------------------------------------------------------------

    def _run(self) -> None:
        hub = gevent.get_hub()
        reported: BaseException | None = None
        while True:
            try:
                while True:
                    reported, self._escaped = self._escaped, None
                    if reported is not None:
                        self._report(reported)
                    self._act()
                    hub.switch()
            except GreenletExit:
                raise
            except BaseException as exc:
                # Reported in the next turn, because the report may be interrupted, too; but not if it failed itself.
                self._escaped = exc if reported is None else None

    def _act(self) -> None:
        """Call the actions that are asked for or due."""
        if not self._has_begun:
            self._seconds.start(self._greenlet.switch)
            self._has_begun = True
        now = time.monotonic()
        self.late = 0.0
        if now - self._looked_at >= _EVERY - LEAST_TIMEOUT:  # by so much, libuv's timers may be early
            self._note_late(now - self._looked_at - _EVERY)
            self._looked_at = now
            self._call(self._look)
        asked, self._asked = self._asked, {}
        for action in asked:
            self._call(action)
        due = sorted([each for each in self._times.items() if each[1] <= now], key=itemgetter(1))
        for action, _ in due:
            del self._times[action]
        for action, when in due:  # one that gives itself a time that is over is called after the hub has polled
            self.late = now - when
            self._call(action)
        self._arm()

    def _call(self, action: Action) -> None:
        if not self._has_begun:
            return  # an action has stopped it
        try:
            action()
        except GreenletExit:
            raise
        except BaseException as exc:
            self._report(exc)

    def _report(self, exc: BaseException) -> None:
        if isinstance(exc, KeyboardInterrupt | SystemExit):
            gevent.get_hub().handle_error(self._greenlet, type(exc), exc, exc.__traceback__)
        else:
            log_soon(logger.error, "%s: its control loop goes on after an error", self._name, exc_info=exc)

    def _note_late(self, late: float) -> None:
        if late > _LATE and self._looked_at > -math.inf and self._reports_late:
            self._reports_late = False
            log_soon(
                logger.warning,
                "%s: the hub was late by %.1f s, and with it heartbeats and all other greenlets. If your code "
                'blocks it, patch (gevent.monkey.patch_all) or use threads (for handlers: spawn="thread"); gevent\'s '
                "monitor thread reports where "
                "(GEVENT_MONITOR_THREAD_ENABLE=1). Reported once",
                self._name,
                late,
            )

    def _arm(self) -> None:
        """Set the timer to the earliest time, unless it is."""
        if not (self._has_begun and self._times):
            return
        timer, when = self._timer, min(self._times.values())
        if timer is not None:
            if timer.active and self._timer_at <= when:
                return
            timer.close()
        self._timer_at = when
        self._timer = make_timer(gevent.get_hub().loop, when - time.monotonic())
        # update: the loop's cached time may be stale by the duration of the current callback.
        self._timer.start(self._greenlet.switch, update=True)

    def _close(self) -> None:
        self._has_begun = False
        if self._wake is not None:
            self._wake.cancel()
        for timer in (self._seconds, self._timer):
            if timer is not None:
                timer.close()
        self._seconds = self._timer = None
