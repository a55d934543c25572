"""The simulation itself: time, processes, and what ends a simulated test."""

from __future__ import annotations

import time

import gevent
import pytest

from gnsq_like import errors
from tests.simulation import Cluster, simulated
from tests.simulation.forked import run_forked
from tests.simulation.world import World


class _Unaskable:
    """As an object of Django's that other tests of this process have imported: to ask for its class raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise LookupError("asked for its class")


#: Whatever looks at all objects of the interpreter meets it, in each test here.
UNASKABLE = _Unaskable()


@simulated(nsqds=3)
def test_a_message_of_each_nsqd_arrives(cluster: Cluster) -> None:
    received: list[bytes] = []
    cluster.reader("clicks", "archive", lambda message: received.append(message.body), max_in_flight=3)
    for number in range(3):
        cluster.publish("clicks", b"%d" % number, nsqd=number)
    assert cluster.wait(lambda: sorted(received) == [b"0", b"1", b"2"]) < 1


@simulated()
def test_an_hour_passes(cluster: Cluster) -> None:
    cluster.reader("clicks", "archive", lambda message: None)
    start, wall = time.monotonic(), time.time()
    gevent.sleep(3600)
    assert time.monotonic() - start == pytest.approx(3600, abs=0.001)
    assert time.time() - wall == pytest.approx(3600, abs=0.001)


@simulated(nsqds=1, nsqlookupds=1)
def test_a_reader_finds_an_nsqd_by_nsqlookupd(cluster: Cluster) -> None:
    received: list[bytes] = []
    cluster.publish("clicks", b"1")
    cluster.reader("clicks", "archive", lambda message: received.append(message.body))
    assert cluster.wait(lambda: received == [b"1"]) < 1


@simulated(nsqds=1, data_path=True)
def test_a_lost_connection_is_made_again(cluster: Cluster) -> None:
    received: list[bytes] = []
    cluster.reader("clicks", "archive", lambda message: received.append(message.body))
    cluster.nsqds[0].restart(seconds=2)
    cluster.publish("clicks", b"1")
    assert cluster.wait(lambda: received == [b"1"]) < 5


@simulated()
def test_a_killed_nsqd_closes_its_connections(cluster: Cluster) -> None:
    producer = cluster.producer(timeout=1.0)
    producer.publish("clicks", b"1")
    cluster.nsqds[0].kill()
    gevent.sleep(0.01)
    start = cluster.now
    with pytest.raises(errors.NotSent):
        producer.publish("clicks", b"2")
    assert cluster.now - start == pytest.approx(1.0, abs=0.05)


@simulated()
def test_a_process_that_stands_still_answers_later(cluster: Cluster) -> None:
    producer = cluster.producer()
    producer.publish("clicks", b"1")
    cluster.nsqds[0].process.stand_still(3.0)
    start = cluster.now
    producer.publish("clicks", b"2")
    assert cluster.now - start == pytest.approx(3.0, abs=0.01)


@simulated()
def test_a_partition_delays(cluster: Cluster) -> None:
    network, nsqd = cluster.world.network, cluster.nsqds[0].process
    producer = cluster.producer()
    producer.publish("clicks", b"1")
    network.part_both_ways(cluster.world.main, nsqd)
    gevent.spawn_later(2.0, network.join_both_ways, cluster.world.main, nsqd)
    start = cluster.now
    producer.publish("clicks", b"2")
    assert 2.0 < cluster.now - start < 3.0


def _kept_after(cluster: Cluster, end: str) -> list[bytes]:
    """The messages that an nsqd still has after its end, of which the first was synced."""
    nsqd = cluster.nsqds[0]
    cluster.publish("clicks", b"synced")
    gevent.sleep(10)
    cluster.publish("clicks", b"written")
    getattr(nsqd, end)()
    nsqd.start()
    received: list[bytes] = []
    cluster.reader("clicks", "archive", lambda message: received.append(message.body))
    gevent.sleep(10)
    return received


@simulated(data_path=True, mem_queue_size=0)
def test_a_killed_nsqd_keeps_what_it_has_written(cluster: Cluster) -> None:
    assert _kept_after(cluster, "kill") == [b"synced", b"written"]


@pytest.mark.parametrize("repeat", range(3))
@simulated(data_path=True, mem_queue_size=0)
def test_a_crash_keeps_what_was_synced(cluster: Cluster, repeat: int) -> None:
    cluster.world.disks[next(iter(cluster.world.disks))]._random.seed(repeat)
    assert _kept_after(cluster, "crash") in ([b"synced"], [b"synced", b"written"])


@pytest.mark.parametrize("repeat", range(5))
@simulated(data_path=True, mem_queue_size=0)
def test_a_crash_keeps_what_was_there_when_it_started_after_a_kill(cluster: Cluster, repeat: int) -> None:
    """What the killed process had not synced lies before what the next one writes and syncs."""
    nsqd = cluster.nsqds[0]
    nsqd.disk._random.seed(repeat)  # type: ignore[union-attr]
    bodies = [b"%d" % number for number in range(20)]
    cluster.publish("clicks", *bodies)
    nsqd.kill()
    nsqd.start()
    nsqd.crash()
    nsqd.start()
    received: list[bytes] = []
    cluster.reader("clicks", "archive", lambda message: received.append(message.body), max_in_flight=5)
    gevent.sleep(10)
    assert received == bodies


@simulated(data_path=True, mem_queue_size=0)
def test_a_full_disk_refuses(cluster: Cluster) -> None:
    producer = cluster.producer()
    producer.publish("clicks", b"1")
    cluster.nsqds[0].disk.is_full = True  # type: ignore[union-attr]
    with pytest.raises(errors.NotSent):
        producer.publish("clicks", b"2", timeout=1.0)
    cluster.nsqds[0].disk.is_full = False  # type: ignore[union-attr]
    producer.publish("clicks", b"3")


@pytest.mark.parametrize("bodies", [1, 20])
@simulated()
def test_other_arguments_are_fixtures_and_parameters(cluster: Cluster, bodies: int) -> None:
    received: list[bytes] = []
    cluster.reader("clicks", "archive", lambda message: received.append(message.body))
    cluster.publish("clicks", *[b"x"] * bodies)
    cluster.wait(lambda: len(received) == bodies)


@simulated()
def _leaves_a_greenlet(cluster: Cluster) -> None:
    gevent.spawn(gevent.sleep, 100)


@simulated()
def _loses_an_error(cluster: Cluster) -> None:
    gevent.spawn(int, "no number")


@simulated()
def _turns_in_circles(cluster: Cluster) -> None:
    while True:
        gevent.sleep(0)


@simulated()
def _waits_in_vain(cluster: Cluster) -> None:
    cluster.wait(lambda: False, seconds=5)


@simulated()
def _breaks_its_promise(cluster: Cluster) -> None:
    late: list[bool] = []
    cluster.always(lambda: not late, "early")
    gevent.spawn_later(3.0, late.append, True)
    gevent.sleep(10)


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (_leaves_a_greenlet, "a greenlet: <Greenlet"),
        (_loses_an_error, "invalid literal for int"),
        (_turns_in_circles, "RunsInCircles"),
        (_waits_in_vain, "waited 5 virtual seconds"),
        (_breaks_its_promise, "early does not hold"),
    ],
)
def test_what_fails_a_test(test: object, text: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=text):
        test()  # type: ignore[operator]


def test_the_same_seed_gives_the_same_run() -> None:
    hashes = [run_forked(lambda seed=seed: _hash(seed), 30).value for seed in (1, 1, 2)]  # type: ignore[misc]
    assert hashes[0] == hashes[1] != hashes[2]


def _hash(seed: int) -> int:
    world = World(seed)

    def main() -> None:
        cluster = Cluster(world, 2, 1, {})
        cluster.reader("clicks", "archive", lambda message: gevent.sleep(0.01), max_in_flight=2)
        for number in range(20):
            cluster.publish("clicks", b"%d" % number, nsqd=number % 2)
        gevent.sleep(100)

    world.run(main)
    return world.loop.hash
