"""Simulated tests: the real package in virtual time.

What is about order, time or a failing network is tested here instead of waiting for a real clock. The real Reader,
Producer, HTTP client, nsqd and nsqlookupd of this package run in one thread, on a gevent loop that never waits
(``loop.py``), over a network in memory (``network.py``). An hour takes about a second, a busy machine changes
nothing, and the same seed gives the same run to the bit. Such a test looks like any other::

    from tests.simulation import Cluster, simulated

    @simulated(nsqds=3)
    def test_a_lost_connection_is_made_again(cluster: Cluster) -> None:
        received = []
        cluster.reader("clicks", "archive", lambda message: received.append(message.body))
        cluster.nsqds[0].restart(seconds=2)
        cluster.publish("clicks", b"1")
        assert cluster.wait(lambda: received == [b"1"]) < 5

It is called with a Cluster; its other arguments are fixtures and parameters, as usual. ``gevent.sleep(60)`` and
``cluster.sleep(60)`` return after 60 virtual seconds, ``cluster.wait(condition)`` as soon as the condition holds.
It fails when it raises, when a greenlet raises what nothing catches, when something turns in circles, and, because
everything is stopped after it, when a greenlet, a timer or a socket is left.

More of what a test may use:

- ``cluster.nsqds[0].daemon`` is the Nsqd itself; ``stop()``, ``kill()``, ``start()`` and ``restart()`` are beside it
- ``cluster.nsqds[0].process`` is its process: ``stand_still(3.0)``, ``run(function)`` in it, ``counts``
- ``cluster.world.network``: ``latency`` and ``jitter`` in seconds, ``bandwidth``, ``fragment``, ``part()`` and
  ``join()`` two processes, ``open_connections()``, each with ``cut()`` and ``become_half_open()``, ports that are
  ``refused`` or whose backlog is ``full``
- ``cluster.always(condition)``: what must hold at each moment
- ``cluster.world.main.counts``: what the test's own process cost, exactly

Each test runs in a forked child of pytest's process, because it takes over the clock, sockets and random numbers of
its interpreter; so what it changes is gone afterwards, and what it prints is captured as usual.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.cluster import Cluster
from tests.simulation.forked import run_forked
from tests.simulation.world import World

__all__ = ["Cluster", "simulated"]

#: Seconds of the processor after which a simulated test is ended.
_TIMEOUT = 60.0


def simulated(
    *,
    nsqds: int = 1,
    nsqlookupds: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    timeout: float = _TIMEOUT,
    **options: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test in virtual time; see the head of this file.

    :param nsqds: how many nsqds the cluster has, and ``nsqlookupds``
    :param seed: decides what is left open: the order of what is ready at the same time, and all random numbers
    :param shuffle: False for the order in which it became ready, where counts must be the same for every seed
    :param timeout: seconds of the processor
    :param options: options of the nsqds; ``data_path=True`` gives each a directory
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            def run() -> None:
                world = World(seed, shuffle=shuffle)
                world.run(lambda: _run_test(world, function, fixtures, (nsqds, nsqlookupds, options)))

            outcome = run_forked(run, timeout)
            if outcome.error == "Skipped":
                pytest.skip(outcome.value)
            if outcome.error:
                pytest.fail(outcome.text, pytrace=False)

        signature = inspect.signature(function)
        _, *others = signature.parameters.values()
        test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return test

    return decorate


def _run_test(
    world: World, function: Callable[..., None], fixtures: dict[str, Any], shape: tuple[int, int, dict[str, Any]]
) -> None:
    nsqds, nsqlookupds, options = shape
    cluster = Cluster(world, nsqds, nsqlookupds, options)
    try:
        function(cluster, **fixtures)
        cluster.close()
        cluster.check_nothing_left()
    finally:
        cluster.remove_files()
    assert not world.errors, "\n".join(world.errors)
