"""When an address is tried: what lasts is told by the clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

import gevent
import pytest

from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery.redial import LASTING, RELIST_AFTER, Redialer
from gnsq_like.errors import ConnectionFailed, NSQError
from tests.support.daemons import wait_for
from tests.support.hub import settle

ADDRESS = parse_address("127.0.0.1:4150")


#: Seconds: the longest delay in these tests.
LONGEST = 0.01


class Scene:
    """A Redialer that knows one address, and whether that is connected."""

    def __init__(self, *fixed: Address) -> None:
        self.now = 1000.0
        self.connected: set[Address] = set()
        self.tries = 0
        #: The next tries raise these, or return them.
        self.faults: list[BaseException] = []
        self.failures: list[Any] = []
        self.redialer = Redialer(
            fixed,
            connect=self.connect,
            is_connected=self.connected.__contains__,
            on_failure=lambda *failure: self.failures.append(failure),
            on_hopeless=self.failures.append,
            max_redial_delay=LONGEST,
            surveyed=True,
            clock=lambda: self.now,
        )

    def connect(self, address: Address) -> NSQError | None:
        self.tries += 1
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, NSQError):
                return fault
            raise fault
        self.connected.add(address)
        return None

    def lose(self, after: float) -> bool:
        self.now += after
        self.connected.remove(ADDRESS)
        return self.redialer.lost(ADDRESS)

    def list(self, *addresses: Address) -> None:
        """A complete round of discovery finds these."""
        self.redialer.found(addresses, complete=True)
        settle()

    def wait_until_connected(self) -> None:
        wait_for(lambda: ADDRESS in self.connected)


@pytest.mark.parametrize("fixed", [True, False])
def test_an_nsqd_is_tried_until_it_accepts(fixed: bool) -> None:
    scene = Scene(ADDRESS) if fixed else Scene()
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(5)]
    if fixed:
        scene.redialer.start()
    else:
        scene.list(ADDRESS)
    scene.wait_until_connected()
    assert scene.tries == 6
    assert len(scene.failures) == 5


def test_a_lost_nsqd_is_tried_again_as_long_as_it_is_listed() -> None:
    scene = Scene()
    scene.list(ADDRESS)
    scene.wait_until_connected()
    assert scene.lose(after=0.0), "discovery should be asked whether it is still there"
    scene.wait_until_connected()
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(1000)]
    scene.lose(after=0.0)
    wait_for(lambda: len(scene.failures) >= 3)
    scene.list()
    wait_for(lambda: not scene.redialer._trying)
    tries = scene.tries
    scene.faults = []
    scene.list(ADDRESS)
    scene.wait_until_connected()
    assert scene.tries == tries + 1


def test_a_fixed_nsqd_needs_no_discovery_when_it_is_lost() -> None:
    scene = Scene(ADDRESS)
    scene.redialer.start()
    scene.wait_until_connected()
    assert not scene.lose(after=0.0)
    scene.wait_until_connected()


def test_connections_that_do_not_last_are_failures_and_one_that_lasted_clears_them() -> None:
    scene = Scene(ADDRESS)
    scene.redialer.start()
    for count in (1, 2, 3):
        scene.wait_until_connected()
        scene.lose(after=LASTING - 1.0)
        assert scene.redialer._tries[ADDRESS].count == count
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    assert scene.redialer._tries[ADDRESS].count == 0


@pytest.mark.parametrize("fault", [RuntimeError(), gevent.Timeout(1), asyncio.CancelledError()])
def test_an_address_is_tried_again_whatever_a_try_raises(fault: BaseException) -> None:
    """For instance in a function that returns the auth_secret."""
    scene = Scene()
    scene.faults = [fault]
    scene.list(ADDRESS)
    scene.wait_until_connected()
    [(address, error)] = scene.failures
    assert (address, error.__cause__) == (str(ADDRESS), fault)


def test_a_stop_ends_all_tries() -> None:
    scene = Scene(ADDRESS)
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(1000)]
    scene.redialer.start()
    wait_for(lambda: scene.tries >= 2)
    scene.redialer.stop()
    assert not scene.redialer._trying


def test_what_discovery_found_and_was_lost_is_believed_to_be_there_only_later() -> None:
    """A round that was under way, or begins before nsqlookupd can know, may list a topic that was just deleted."""
    now = 100.0
    connected = {ADDRESS}
    redialer = Redialer[Address](
        (),
        connect=lambda address: connected.add(address),
        is_connected=connected.__contains__,
        on_failure=lambda *_: None,
        on_hopeless=lambda _: None,
        max_redial_delay=LONGEST,
        surveyed=False,
        relisted=True,
        clock=lambda: now,
    )
    redialer.found([ADDRESS], complete=True)
    connected.clear()
    assert redialer.lost(ADDRESS)
    assert redialer.known == frozenset()
    assert [redialer.relisted([ADDRESS], now + began) for began in (-1.0, 0.0, 0.4)] == [[], [], []]
    assert redialer.relisted([ADDRESS], now + RELIST_AFTER) == [ADDRESS]
    assert not connected
