"""What tests of programs that use NSQ need: daemons, a cluster, waiting without luck, a clock, a faulty network.

::

    from gnsq_like.testing import running_nsqd

    with running_nsqd(msg_timeout=1) as nsqd:
        work_with(nsqd.tcp_address)
        nsqd.wait_until("clicks", "archive", left=0)

With pytest the same comes as fixtures (``nsqd``, ``nsqlookupd``, ``nsq_cluster``, ``nsq_proxy``, ``nsq_clock``):
installing gnsq_like installs the plugin. It works in tests that patch nothing and in monkey-patched ones, from
any thread. The names are loaded at first use; until then neither gevent nor the daemons are imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_like.testing.clock import Clock
    from gnsq_like.testing.cluster import RunningCluster, running_cluster
    from gnsq_like.testing.proxy import FaultProxy
    from gnsq_like.testing.recording import Published, RecordingProducer
    from gnsq_like.testing.running import RunningNsqd, RunningNsqlookupd, running_nsqd, running_nsqlookupd
    from gnsq_like.testing.states import ChannelState, TopicState
    from gnsq_like.testing.take import TakenMessage
    from gnsq_like.testing.waiting import wait_until

__all__ = [
    "ChannelState",
    "Clock",
    "FaultProxy",
    "Published",
    "RecordingProducer",
    "RunningCluster",
    "RunningNsqd",
    "RunningNsqlookupd",
    "TakenMessage",
    "TopicState",
    "running_cluster",
    "running_nsqd",
    "running_nsqlookupd",
    "wait_until",
]

_HOMES = {
    "ChannelState": "states",
    "Clock": "clock",
    "FaultProxy": "proxy",
    "Published": "recording",
    "RecordingProducer": "recording",
    "RunningCluster": "cluster",
    "RunningNsqd": "running",
    "RunningNsqlookupd": "running",
    "TakenMessage": "take",
    "TopicState": "states",
    "running_cluster": "cluster",
    "running_nsqd": "running",
    "running_nsqlookupd": "running",
    "wait_until": "waiting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
