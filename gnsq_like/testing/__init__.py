"""For tests of programs that use NSQ: daemons, a cluster, reliable waits, a clock, a faulty network.

::

    from gnsq_like.testing import running_nsqd

    with running_nsqd(msg_timeout=1) as nsqd:
        work_with(nsqd.tcp_address)
        nsqd.wait_until("clicks", "archive", left=0)

With pytest, the same is available as fixtures (``nsqd``, ``nsqlookupd``, ``nsq_cluster``, ``nsq_proxy``,
``nsq_clock``): installing gnsq_like installs the plugin. It works in tests that patch nothing and in monkey-patched
ones, from any thread. The names are loaded at first use; until then neither gevent nor the daemons are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.testing.clock import Clock
    from gnsq_like.testing.cluster import RunningCluster, running_cluster
    from gnsq_like.testing.proxy import FaultProxy
    from gnsq_like.testing.recording import Published, RecordingProducer
    from gnsq_like.testing.running import RunningNsqd, RunningNsqlookupd, running_nsqd, running_nsqlookupd
    from gnsq_like.testing.states import ChannelState, TopicState
    from gnsq_like.testing.taken_messages import TakenMessage
    from gnsq_like.testing.waits import wait_until

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

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ChannelState": "gnsq_like.testing.states",
            "Clock": "gnsq_like.testing.clock",
            "FaultProxy": "gnsq_like.testing.proxy",
            "Published": "gnsq_like.testing.recording",
            "RecordingProducer": "gnsq_like.testing.recording",
            "RunningCluster": "gnsq_like.testing.cluster",
            "RunningNsqd": "gnsq_like.testing.running",
            "RunningNsqlookupd": "gnsq_like.testing.running",
            "TakenMessage": "gnsq_like.testing.taken_messages",
            "TopicState": "gnsq_like.testing.states",
            "running_cluster": "gnsq_like.testing.cluster",
            "running_nsqd": "gnsq_like.testing.running",
            "running_nsqlookupd": "gnsq_like.testing.running",
            "wait_until": "gnsq_like.testing.waits",
        },
    )
