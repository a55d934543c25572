"""When an address is tried: by the clock the test moves, with a try that always succeeds."""

from __future__ import annotations

import asyncio
from typing import Any

import gevent
import pytest

from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery.redial import LASTING, Redialer
from tests.support.hub import settle

ADDRESS = parse_address("127.0.0.1:4150")


class Scene:
    """A Redialer with one address, and whether that is connected."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.connected: set[Address] = set()
        self.tries = 0
        #: The next try raises this.
        self.fault: BaseException | None = None
        self.failures: list[Any] = []
        self.redialer = Redialer(
            (),
            connect=self.connect,
            is_connected=self.connected.__contains__,
            on_failure=lambda *failure: self.failures.append(failure),
            on_hopeless=self.failures.append,
            poll_interval=60.0,
            max_redial_delay=0.01,
            surveyed=True,
            clock=lambda: self.now,
        )

    def connect(self, address: Address) -> None:
        self.tries += 1
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.connected.add(address)

    def lose(self, after: float) -> bool:
        self.now += after
        self.connected.remove(ADDRESS)
        return self.redialer.lost(ADDRESS)

    def listed(self) -> bool:
        """Discovery lists the address; whether that makes it connected."""
        self.redialer.found([ADDRESS], complete=True)
        settle()
        return ADDRESS in self.connected


def test_a_listed_nsqd_whose_connections_do_not_last_is_left_alone_from_the_second_loss_on() -> None:
    scene = Scene()
    assert scene.listed()
    assert scene.lose(after=0.0), "only discovery brings it back"
    assert scene.listed(), "the first is like any loss"
    scene.lose(after=LASTING - 1.0)
    assert not scene.listed()
    scene.now += 15.0
    assert not scene.listed()
    scene.now += 1.0
    assert scene.listed()
    scene.lose(after=0.0)
    scene.now += 31.0
    assert not scene.listed()
    scene.now += 1.0
    assert scene.listed()
    assert (scene.tries, scene.failures) == (4, [])


def test_a_connection_that_lasted_clears_the_failures() -> None:
    scene = Scene()
    for _ in range(3):
        assert scene.listed()
        scene.lose(after=0.0)
        scene.now += 60.0
    assert scene.listed()
    scene.lose(after=LASTING)
    assert scene.listed()
    scene.lose(after=0.0)
    assert scene.listed(), "the first again"


@pytest.mark.parametrize("fault", [RuntimeError(), gevent.Timeout(1), asyncio.CancelledError()])
def test_an_address_is_tried_again_whatever_a_try_raises(fault: BaseException) -> None:
    """For instance in a function that returns the auth_secret."""
    scene = Scene()
    scene.fault = fault
    assert not scene.listed()
    [(address, error)] = scene.failures
    assert (address, error.__cause__) == (str(ADDRESS), fault)
    scene.now += 60.0
    assert scene.listed()
