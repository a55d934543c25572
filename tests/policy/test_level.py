"""The RDY in force: the share, or a credit for an nsqd that counts it down, against one that does."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.charge import Charge, Settings
from gnsq_like.policy.level import Level, Renewal
from tests.support.scale import examples


def charge(share: int, in_flight: int) -> Charge[str]:
    made = Charge("it", 0.0, Settings())
    made.sent(share, 0.0)
    made.in_flight = in_flight
    return made


def test_without_more_it_is_the_share_and_nothing_is_sent_twice() -> None:
    level = Level()
    assert level.command(charge(3, 2), 0.0) == 3
    level.sent(3, 0.0)
    assert level.command(charge(3, 0), 0.0) is None


def test_renewed_at_a_quarter() -> None:
    renewal = Renewal()
    renewal.sent(100, 0.0)
    renewal.received(74, 0, 0.0)
    assert renewal.command(charge(100, 0), 0.0) is None
    renewal.received(1, 0, 0.0)
    assert renewal.command(charge(100, 0), 0.0) == 75


@examples(5)
@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 1 << 32))
def test_a_peer_that_counts_down_delivers_everything(share: int, messages: int, seed: int) -> None:
    rng = random.Random(seed)
    renewal = Renewal()
    waiting, rdy, in_flight, commands = messages, 0, 0, 0
    network: list[int] = []

    def renew() -> None:
        nonlocal rdy, commands
        wanted = renewal.command(charge(share, in_flight), 0.0)
        if wanted is not None:
            assert 0 < wanted <= share - in_flight
            renewal.sent(wanted, 0.0)
            rdy, commands = wanted, commands + 1

    renew()
    while waiting or in_flight or network:
        choice = rng.randrange(3)
        if choice == 0 and rdy and waiting:
            n = min(rdy, waiting, rng.randint(1, 50))
            rdy, waiting = rdy - n, waiting - n
            network.append(n)
        elif choice == 1 and network:
            n = network.pop(0)
            renewal.received(n, 0, 0.0)
            in_flight += n
            renew()
        elif choice == 2 and in_flight:
            in_flight -= rng.randint(1, in_flight)
            renew()
        else:
            assert rdy or in_flight or network or not waiting, "stalled"
