"""When an address is tried: what lasts is told by the clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

import gevent
import pytest

from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery import dialler
from gnsq_like.discovery.dialler import ANSWER_LASTS, LASTING, Redialer, Round
from gnsq_like.errors import ConnectionFailed, NegotiationFailed, NSQError, TLSError
from gnsq_like.policy.delays import RELIST_AFTER, SEARCH_CLOSE
from tests.support import hub_errors
from tests.support.daemons import wait_for
from tests.support.hub import settle

ADDRESS = parse_address("127.0.0.1:4150")


#: Seconds: the longest delay in these tests.
LONGEST = 0.01


class Clock:
    """The time of the module, which tests move."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def moved_time(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.now = Clock.now
    monkeypatch.setattr(dialler, "time", CLOCK)


class Scene:
    """A Redialer that knows one address, and whether that is connected."""

    def __init__(self, *fixed: Address, longest: float = LONGEST) -> None:
        self.connected: set[Address] = set()
        self.tries = 0
        #: How often discovery was asked, and the addresses that it lists then; None if it does not answer.
        self.asked = 0
        self.answers: list[Address] | None = None
        #: The greenlet that makes them.
        self.trying: Any = None
        #: Seconds that a try takes; then it asks for permission to subscribe.
        self.takes = 0.001
        #: The next tries raise these, or return them.
        self.faults: list[BaseException] = []
        #: What each of these addresses answers to every try.
        self.refusals: dict[Address, NSQError] = {}
        self.failures: list[Any] = []
        self.redialer = Redialer(
            fixed,
            connect=self.connect,
            is_connected=self.connected.__contains__,
            ask=self.ask,
            on_failure=lambda *failure: self.failures.append(failure),
            on_hopeless=self.give_up,
            max_redial_delay=longest,
            surveyed=True,
        )

    @property
    def now(self) -> float:
        return CLOCK.now

    @now.setter
    def now(self, now: float) -> None:
        CLOCK.now = now

    @property
    def trying_now(self) -> bool:
        return any(each.is_trying for each in self.redialer.diallers)

    def connect(self, address: Address) -> None:
        self.tries += 1
        self.trying = gevent.getcurrent()
        self.now += self.takes
        if self.faults:
            raise self.faults.pop(0)
        if address in self.refusals:
            raise self.refusals[address]
        if self.redialer.is_still_listed(address):
            self.connected.add(address)

    def ask(self) -> None:
        self.asked += 1
        gevent.spawn(self.answer)

    def answer(self) -> None:
        if self.answers is not None:
            self.list(*self.answers)

    def give_up(self, error: NSQError) -> bool:
        self.failures.append(error)
        return True

    def lose(self, after: float) -> None:
        self.now += after
        self.connected.remove(ADDRESS)
        self.redialer.lost(ADDRESS)

    def list(self, *addresses: Address, ago: float = 0.0, complete: bool = True) -> float | None:
        """A round of discovery finds these, that began so long ago."""
        of = Round(self.now - ago)
        of.answered, of.is_complete = self.now, complete
        lost_at = self.redialer.found(addresses, of)
        settle()
        return lost_at

    def wait_until_connected(self) -> None:
        wait_for(lambda: ADDRESS in self.connected)


@pytest.mark.parametrize("fixed", [True, False])
def test_an_nsqd_is_tried_until_it_accepts(fixed: bool) -> None:
    scene = Scene(ADDRESS) if fixed else Scene()
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(5)]
    if fixed:
        scene.redialer.start()
    else:
        scene.answers = [ADDRESS]
        scene.list(ADDRESS)
    scene.wait_until_connected()
    assert scene.tries == 6
    assert len(scene.failures) == 5
    assert scene.asked == (0 if fixed else 5), "one round for each retry"


def test_an_nsqd_that_discovery_found_is_tried_as_long_as_it_is_listed() -> None:
    scene = Scene()
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(1000)]
    scene.answers = [ADDRESS]
    scene.list(ADDRESS)
    wait_for(lambda: len(scene.failures) >= 3)
    scene.answers = None
    scene.list()
    wait_for(lambda: not scene.trying_now)
    tries = scene.tries
    scene.faults = []
    scene.list(ADDRESS)
    scene.wait_until_connected()
    assert scene.tries == tries + 1


@pytest.mark.parametrize(
    ("answers", "connected"), [([ADDRESS], True), ([], False)], ids=["still there", "deleted meanwhile"]
)
def test_discovery_is_asked_again_before_sub_when_a_try_took_long(answers: list[Address], connected: bool) -> None:
    """A SYN is sent again until the network is back: the topic may have been deleted meanwhile."""
    scene = Scene()
    scene.takes = ANSWER_LASTS + 0.1
    scene.answers = answers
    scene.list(ADDRESS)
    wait_for(lambda: scene.tries == 1 and not scene.trying_now)
    assert scene.asked == 1
    assert (ADDRESS in scene.connected) is connected


def test_a_round_that_began_before_the_failure_permits_no_retry() -> None:
    scene = Scene()
    scene.faults = [ConnectionFailed("meant", str(ADDRESS))]
    scene.list(ADDRESS)
    wait_for(lambda: scene.asked == 1)
    scene.list(ADDRESS, ago=0.001)
    scene.list(ADDRESS, ago=0.001)
    assert scene.tries == 1
    scene.now += 0.001
    scene.list(ADDRESS, ago=0.001)
    scene.wait_until_connected()


def test_a_lost_nsqd_is_tried_only_when_a_round_that_began_later_lists_it() -> None:
    """SUB would create a topic again that somebody has deleted."""
    scene = Scene()
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    assert scene.asked == 1, "whether it is still there"
    lost_at = scene.now
    for complete in (True, False):
        # One that was under way, and one that began before all nsqlookupds had heard of a deletion.
        for began in (lost_at - 1.0, lost_at, lost_at + RELIST_AFTER - 0.1):
            scene.now = lost_at + 1.0
            assert scene.list(ADDRESS, ago=scene.now - began, complete=complete) == lost_at
    assert scene.list() == lost_at, "it is missing also when it is not listed"
    assert scene.tries == 1
    assert not scene.trying_now
    scene.now = lost_at + RELIST_AFTER
    assert scene.list(ADDRESS) is None
    scene.wait_until_connected()


def test_a_lost_nsqd_is_missing_until_it_is_found_again_or_forgotten() -> None:
    scene = Scene()
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    lost_at = scene.now
    scene.now += 1000
    assert scene.list() == lost_at
    scene.redialer.forget([ADDRESS])
    assert scene.list() is None
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    assert scene.list() == scene.now


def test_a_restarted_nsqd_is_tried_at_once_when_it_is_listed_again() -> None:
    """Its earlier life, in which tries failed, does not count."""
    scene = Scene(longest=1000.0)
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    scene.now += SEARCH_CLOSE
    scene.faults = [ConnectionFailed("meant", str(ADDRESS))]
    scene.redialer._table[ADDRESS].count = 10
    scene.list(ADDRESS)
    assert scene.failures
    assert scene.redialer._table[ADDRESS].not_before > scene.now + 1.0
    scene.list()
    scene.list(ADDRESS)
    assert ADDRESS in scene.connected


def test_a_lost_nsqd_that_is_still_listed_is_tried_once_a_second_at_first() -> None:
    """It may be listed from before: nsqd closes its connections first, and then saves its messages."""
    scene = Scene(longest=1000.0)
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    scene.now += 1.0
    scene.faults = [ConnectionFailed("meant", str(ADDRESS))] * 2
    scene.redialer._table[ADDRESS].count = 10
    scene.redialer._table[ADDRESS].not_before = scene.now
    scene.list(ADDRESS)
    assert scene.redialer._table[ADDRESS].not_before - scene.now < 0.8


def test_a_fixed_nsqd_needs_no_discovery_when_it_is_lost() -> None:
    scene = Scene(ADDRESS)
    scene.redialer.start()
    scene.wait_until_connected()
    scene.lose(after=0.0)
    scene.wait_until_connected()
    assert scene.asked == 0


def test_connections_that_do_not_last_are_failures_and_one_that_lasted_clears_them() -> None:
    scene = Scene(ADDRESS)
    scene.redialer.start()
    for count in (1, 2, 3):
        scene.wait_until_connected()
        scene.lose(after=LASTING - 1.0)
        assert scene.redialer._table[ADDRESS].count == count
    scene.wait_until_connected()
    scene.lose(after=LASTING)
    assert scene.redialer._table[ADDRESS].count == 0


@pytest.mark.parametrize("fault", [RuntimeError(), gevent.Timeout(1), asyncio.CancelledError()])
def test_an_address_is_tried_again_whatever_a_try_raises(fault: BaseException) -> None:
    """For instance in a function that returns the auth_secret."""
    scene = Scene()
    scene.faults = [fault]
    scene.answers = [ADDRESS]
    scene.list(ADDRESS)
    scene.wait_until_connected()
    [(address, error)] = scene.failures
    assert (address, error.__cause__) == (str(ADDRESS), fault)


def test_an_address_whose_try_has_ended_is_tried_again_at_the_next_look() -> None:
    scene = Scene(longest=1000.0)
    scene.faults = [ConnectionFailed("meant", str(ADDRESS))]
    scene.answers = [ADDRESS]
    scene.list(ADDRESS)
    with hub_errors.expected("RuntimeError"):
        scene.trying.kill(RuntimeError("raised by a signal handler"))
    scene.redialer.look()
    scene.wait_until_connected()
    scene.redialer.look()
    assert not scene.trying_now


OTHER = parse_address("127.0.0.1:4152")


def refusal(cause: Exception) -> ConnectionFailed:
    error = ConnectionFailed("meant", str(ADDRESS))
    error.__cause__ = cause
    return error


EXPIRED = refusal(TLSError("expired", "yesterday"))
NO_TLS = refusal(NegotiationFailed("tls_v1", "not offered"))


@pytest.mark.parametrize("error", [EXPIRED, NO_TLS])
def test_refusals_without_a_connection_before_end_it(error: NSQError) -> None:
    scene = Scene()
    scene.faults = [error]
    scene.list(ADDRESS)
    wait_for(lambda: scene.failures == [(str(ADDRESS), error), error])


def test_refusals_after_a_connection_end_it_only_if_none_of_them_may_pass() -> None:
    scene = Scene(ADDRESS, OTHER)
    scene.redialer.start()
    wait_for(lambda: len(scene.connected) == 2)
    scene.refusals = {ADDRESS: EXPIRED, OTHER: NO_TLS}
    for address in (ADDRESS, OTHER):
        scene.connected.remove(address)
        scene.redialer.lost(address)
    wait_for(lambda: len(scene.failures) == 2)
    tries = scene.tries
    wait_for(lambda: scene.tries >= tries + 4)  # whichever comes last
    assert set(scene.failures) == {(str(ADDRESS), EXPIRED), (str(OTHER), NO_TLS)}
    scene.refusals[ADDRESS] = NO_TLS
    wait_for(lambda: NO_TLS in scene.failures)


def test_a_connection_before_counts_for_an_nsqd_that_comes_later() -> None:
    """The first one is replaced, and the new one's certificate is not valid yet."""
    scene = Scene()
    scene.list(ADDRESS)
    scene.wait_until_connected()
    scene.connected.clear()
    scene.redialer.forget([ADDRESS])
    scene.list()
    scene.faults = [EXPIRED]
    scene.answers = [OTHER]
    scene.list(OTHER)
    wait_for(lambda: OTHER in scene.connected)
    assert scene.failures == [(str(OTHER), EXPIRED)]


def test_a_stop_ends_all_tries() -> None:
    scene = Scene(ADDRESS)
    scene.faults = [ConnectionFailed("meant", str(ADDRESS)) for _ in range(1000)]
    scene.redialer.start()
    wait_for(lambda: scene.tries >= 2)
    scene.redialer.stop()
    assert not scene.trying_now
