"""Daemons for our own tests: ours in this process, ours as a process, or the real ones on PATH.

::

    with running_nsqlookupd("ours") as lookupd:
        lookupd.tcp_address                          # for lookupd_tcp_addresses=[...] of running_nsqd
    with running_nsqd("ours", msg_timeout=1) as nsqd:
        nsqd.tcp_address, nsqd.http_address          # "127.0.0.1:41234"
        nsqd.stop(); nsqd.start()                    # again, on the same ports
        nsqd.kill()                                  # at once, without saying goodbye

Options are those of NsqdOptions and NsqlookupdOptions, in seconds; for processes they become flags.
"ours" runs in the test's own hub: the test must wait the gevent way (gevent sockets, gevent.sleep), or use
kind="process". Its messages are in memory only, unless it has a data_path.

This is a thin layer over gnsq_like.testing, whose own tests use that as it is.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Literal, TypeVar

import pytest

from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd, NsqlookupdOptions
from gnsq_like.testing.kinds import Daemon as Running
from gnsq_like.testing.kinds import Process, make_daemon
from gnsq_like.testing.waits import wait_until
from tests.support.patient import NsqdHTTPClient

__all__ = ["KINDS", "Kind", "Process", "Running", "running_nsqd", "running_nsqlookupd", "wait_for"]

Kind = Literal["ours", "process", "real"]
T = TypeVar("T")

#: For @pytest.mark.parametrize("kind", KINDS): the same assertions for ours and the real ones.
KINDS = ["ours", pytest.param("real", marks=pytest.mark.real_nsqd)]
#: For what only an nsqd after 1.3.0 has.
LATER_KINDS = ["ours", pytest.param("real", marks=pytest.mark.real_nsqd(after="1.3.0"))]


@cache
def is_after_1_3_0() -> bool:
    """Whether the daemons on PATH are NSQ's after 1.3.0, which report the same version."""
    return b"-topology-zone" in subprocess.run(["nsqd", "--help"], capture_output=True, check=False).stderr


def has_topology(kind: Kind) -> bool:
    """Whether daemons of this kind know zones and regions."""
    return kind != "real" or is_after_1_3_0()


def delete_topics(http_address: str) -> None:
    """Delete all topics of an nsqd that several tests share."""
    with NsqdHTTPClient(http_address) as client:
        for topic in client.stats()["topics"]:
            client.delete_topic(topic["topic_name"])


def wait_for(condition: Callable[[], T], what: str = "", timeout: float = 100.0) -> T:
    """Wait, the gevent way, until ``condition()`` is true, and give what it gave; AssertionError after ``timeout``.

    By default that is shortly before a test's own limit, and only names what did not come.
    """
    return wait_until(condition, timeout, what)


@contextmanager
def _running(kind: Kind, daemon: Any, options_class: Any, options: dict[str, Any]) -> Iterator[Running]:
    running = make_daemon("hub" if kind == "ours" else kind, daemon, options_class, options)
    if isinstance(running, Process):  # one that hangs is found by the limit of the test
        running.start_timeout = running.stop_timeout = math.inf
    try:
        running.start()
        yield running
    finally:
        running.close()


def running_nsqd(kind: Kind = "ours", **options: Any) -> AbstractContextManager[Running]:
    """Context manager: an nsqd on free loopback ports. "ours" has its Nsqd as ``.daemon``.

    With tls_cert and tls_key (paths, as of certificates.Certificates), ``.https_address`` is one more of them.
    """
    if kind == "ours":
        options.setdefault("data_path", "")
    return _running(kind, Nsqd, NsqdOptions, options)


def running_nsqlookupd(kind: Kind = "ours", **options: Any) -> AbstractContextManager[Running]:
    """Context manager: a nsqlookupd on free loopback ports. "ours" has its Nsqlookupd as ``.daemon``."""
    return _running(kind, Nsqlookupd, NsqlookupdOptions, options)
