"""Which destination is next, in virtual time."""

from collections import Counter

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.tools.host_pool import FIRST_REST, LONGEST_REST, HostPool

HOSTS = ["a", "b", "c"]


def used(pool: HostPool, count: int, now: float = 0.0) -> Counter[str]:
    """The hosts of successful requests."""
    found: Counter[str] = Counter()
    for _ in range(count):
        address = pool.get(now)
        found[address] += 1
        pool.succeeded(address, 0.1)
    return found


@pytest.mark.parametrize("mode", ["round-robin", "hostpool"])
def test_one_after_the_other(mode: str) -> None:
    assert used(HostPool(HOSTS, mode), 300) == {"a": 100, "b": 100, "c": 100}


def failing(pool: HostPool, address: str, now: float = 0.0) -> None:
    """A request to this host fails; those before it do not."""
    while (host := pool.get(now)) != address:
        pool.succeeded(host, 0.1)
    pool.failed(address, now)


def test_round_robin_does_not_care_for_failures() -> None:
    pool = HostPool(HOSTS, "round-robin")
    failing(pool, "a")
    assert used(pool, 3)["a"] == 1


def test_a_host_that_failed_rests_and_longer_each_time() -> None:
    pool = HostPool(HOSTS)
    now, rest = 0.0, FIRST_REST
    failing(pool, "b", now)
    for _ in range(10):
        assert "b" not in used(pool, 100, now + rest - 1)
        now += rest
        assert pool.get(now) == "b"
        pool.failed("b", now)
        assert "b" not in used(pool, 100, now)  # one request tries it
        rest = min(2 * rest, LONGEST_REST)
    assert rest == LONGEST_REST
    now += rest
    assert pool.get(now) == "b"
    pool.succeeded("b", 0.1)
    assert used(pool, 300, now)["b"] == 100
    failing(pool, "b", now)
    assert pool.get(now + FIRST_REST) == "b"


def test_if_all_rest_all_are_tried() -> None:
    pool = HostPool(HOSTS)
    for host in HOSTS:
        failing(pool, host)
    assert set(used(pool, 3, 1.0)) == set(HOSTS)


def test_epsilon_greedy_prefers_the_fastest_and_tries_the_others() -> None:
    draws = iter([n % 10 / 10 for n in range(10_000)])
    pool = HostPool(HOSTS, "epsilon-greedy", lambda: next(draws))
    times = {"a": 0.3, "b": 0.01, "c": 0.2}
    found: Counter[str] = Counter()
    for _ in range(1000):
        address = pool.get(0.0)
        found[address] += 1
        pool.succeeded(address, times[address])
    assert found["b"] > 800
    assert min(found.values()) > 10
    assert len(found) == 3


@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
def test_a_host_that_does_not_answer_gets_its_share_of_the_requests_in_progress(mode: str) -> None:
    pool = HostPool(["silent", "a"], mode, lambda: 0.5)
    pending = [pool.get(0.0) for _ in range(10)]
    assert Counter(pending) == {"silent": 5, "a": 5}
    for _ in range(100):
        pending.remove("a")
        pool.succeeded("a", 0.1)
        pending.append(pool.get(0.0))
    assert Counter(pending) == {"silent": 5, "a": 5}
    pool.abandoned("silent")
    pool.succeeded("silent", 0.1)
    assert [pool.get(0.0) for _ in range(2)] == ["silent", "silent"]


def test_an_unknown_mode() -> None:
    with pytest.raises(InvalidOption, match="mode"):
        HostPool(HOSTS, "all")
