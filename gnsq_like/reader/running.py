"""The parts of a started Reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnsq_like.discovery.redial import Redialer, Target
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handlers
from gnsq_like.reader.hooks import MessageHooks
from gnsq_like.reader.stopping import Stop
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller


@dataclass(slots=True)
class Running:
    """Made by ``Reader.start``, and kept after the stop for its statistics."""

    hub_handle: HubHandle
    flow: FlowControl
    handlers: Handlers
    hooks: MessageHooks
    redialer: Redialer[Target]
    watchdog: Watchdog
    poller: LookupdPoller | None
    #: Settled when the Reader has stopped.
    stopped: PendingReply
    #: Set when the stop begins.
    stop: Stop | None = None
    #: A native lock: threads that find this one ended may come together.
    abandoning: Any = field(default_factory=native.allocate_lock)

    def stats(self) -> dict[str, Any]:
        """Its part of ``Reader.stats``. From any thread."""
        return {
            "in_flight": self.flow.in_flight,
            "waiting": self.handlers.waiting,
            "busy": self.handlers.busy,
            "backoff_level": self.flow.backoff_level,
            "known": sorted({str(target) for target in self.redialer.known}),
            "surveyed": self.redialer.surveyed,
        }


#: The same of a Reader that was never started.
NOT_STARTED: dict[str, Any] = {
    "in_flight": 0,
    "waiting": 0,
    "busy": 0,
    "backoff_level": 0,
    "known": [],
    "surveyed": False,
}
