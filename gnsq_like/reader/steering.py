"""The settings of a Reader that may be changed while it runs, from any thread."""

from __future__ import annotations

from gnsq_like.options import ReaderOptions, make_options
from gnsq_like.reader.running import Running


class Steering:
    """A base of ``Reader``: keeps the settings, and applies them in the Reader's hub while it runs."""

    def __init__(self, options: ReaderOptions) -> None:
        self.options = options
        self._max_in_flight = options.max_in_flight
        self._rate_limit = options.rate_limit
        self._paused = False
        #: "new", "running", "stopping" or "stopped".
        self._state = "new"
        #: Set by start().
        self._running: Running | None = None

    @property
    def max_in_flight(self) -> int:
        """The limit of messages in flight on all connections; may be changed at any time, from any thread."""
        return self._max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        make_options(ReaderOptions, {"max_in_flight": value})
        self._max_in_flight = value
        self._steer()

    @property
    def rate_limit(self) -> float | None:
        """Messages a second, or None for no limit; may be changed at any time, from any thread."""
        return self._rate_limit

    @rate_limit.setter
    def rate_limit(self, value: float | None) -> None:
        make_options(ReaderOptions, {"rate_limit": value})
        self._rate_limit = value
        self._steer()

    def pause(self) -> None:
        """Receive no new messages until :meth:`resume`; those in flight are still handled. From any thread."""
        self._paused = True
        self._steer()

    def resume(self) -> None:
        """End a :meth:`pause`. From any thread."""
        self._paused = False
        self._steer()

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly its whole share in flight; more arrives only after answers."""
        return self._running is not None and self._running.flow.is_starved

    def _concurrency(self) -> int:
        return self.options.concurrency or max(1, self._max_in_flight)

    def _steer(self) -> None:
        """Apply the settings in the Reader's hub."""
        running = self._running
        if running is None or self._state != "running":
            return
        if running.hub_handle.here:
            self._follow(running)
        else:
            running.hub_handle.call(self._follow, running)

    def _follow(self, running: Running) -> None:
        running.flow.max_in_flight = self._max_in_flight
        running.flow.paused = self._paused
        running.flow.set_rate_limit(self._rate_limit)
        running.flow.plan_soon()
        running.handlers.set_concurrency(self._concurrency())
