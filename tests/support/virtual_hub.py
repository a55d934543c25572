"""gevent in virtual time: a hub whose timers fire at once, in the order of their times.

Greenlets, events, sleeps and timeouts are gevent's own; they wait for the `Clock` that is also the simulation's.
Nothing here reads a socket or the real time. `run_in_virtual_time` calls a function whose `gevent.sleep(60)` returns
when all that is due within 60 virtual seconds has been done.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from gevent.hub import Hub, set_hub

from tests.support.virtual_nsqd import Clock


class _Due:
    """A call that is due at some time, as what gevent calls a callback."""

    __slots__ = ("_args", "_call")

    def __init__(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self._call: Callable[..., object] | None = call
        self._args = args

    def __bool__(self) -> bool:
        return self._call is not None

    @property
    def pending(self) -> bool:
        return self._call is not None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(*self._args)

    def stop(self) -> None:
        self._call = None

    close = stop


class _Timer:
    """A timer that fires once, as gevent uses it."""

    pending = False

    def __init__(self, loop: _Loop, after: float) -> None:
        self._loop = loop
        self._after = after
        self._due: _Due | None = None

    @property
    def active(self) -> bool:
        return bool(self._due)

    def start(self, call: Callable[..., object], *args: object, update: object = None) -> None:
        self.stop()
        self._due = self._loop.call_after(self._after, call, args)

    def stop(self) -> None:
        if self._due is not None:
            self._due.stop()

    close = stop

    def __enter__(self) -> _Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Loop:
    """What gevent's hub needs of an event loop where there is neither I/O nor another thread."""

    default = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.error_handler: Any = None

    def run(self) -> None:
        self._clock.run(math.inf)

    def call_after(self, seconds: float, call: Callable[..., object], args: tuple[object, ...]) -> _Due:
        due = _Due(call, args)
        self._clock.after(seconds, due.run)
        return due

    def run_callback(self, call: Callable[..., object], *args: object) -> _Due:
        return self.call_after(0.0, call, args)

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True, priority: int | None = None) -> _Timer:
        assert not repeat, "nothing here repeats a timer"
        return _Timer(self, after)

    def now(self) -> float:
        return self._clock.now

    def update_now(self) -> None:
        pass

    def destroy(self) -> None:
        pass


def run_in_virtual_time(clock: Clock, main: Callable[[], object]) -> None:
    """Call `main` in a thread whose hub runs on this clock. An error of an event ends the simulation, and is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        hub = Hub(loop=_Loop(clock))
        set_hub(hub)
        try:
            main()
        except BaseException as exc:
            errors.append(exc)
        finally:
            hub.destroy()

    thread = threading.Thread(target=run, name="virtual time")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
