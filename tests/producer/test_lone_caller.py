"""A thread that publishes alone gets the connection on lease, and whatever happens meanwhile, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from gevent.threadpool import ThreadPool

from gnsq_like import NsqdHTTPClient, Producer
from tests.support.daemons import KINDS, Running, running_nsqd
from tests.support.nsqds import good_nsqd
from tests.support.peer import PATIENCE, ScriptedNsqd
from tests.support.scripts import run_script

#: For scripts: ``leased()`` publishes until this thread has a lease, and returns how many publishes it took. On a busy
#: machine that lease may be over already.
BEGIN = """
    import os, signal, sys, threading, time
    from gnsq_like import Producer
    from gnsq_like.errors import NSQError

    lost = []
    producer = Producer(sys.argv[1], timeout=60, on_disconnect=lambda *given: lost.append(str(given)))

    def leased():
        count = 0
        while producer._running is None or not producer._running.pool.lone_caller.is_lent:
            producer.publish("t", b"row")
            count += 1
        return count

    def report(count):
        stats = producer.stats()
        outcomes = {name: stats[name] for name in ("confirmed", "refused", "unknown", "not_sent", "retried")}
        import json
        print(json.dumps([count, lost, outcomes]))
"""


@pytest.fixture(params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as daemon:
        yield daemon


@pytest.fixture
def taker() -> Iterator[ScriptedNsqd]:
    with good_nsqd() as server:
        yield server


def stored(nsqd: Running) -> int:
    with NsqdHTTPClient(nsqd.http_address) as client:
        [topic] = client.stats(topic="t")["topics"]
    return int(topic["message_count"])


def check(nsqd: Running, script: str, children: int = 0) -> None:
    """Run the script after BEGIN; all it counts is confirmed and stored, by one connection.

    :param children: what its forked children publish besides
    """
    [line] = run_script(BEGIN + script, nsqd.tcp_address)
    count, lost, outcomes = json.loads(line)
    assert lost == []
    assert outcomes == {"confirmed": count, "refused": 0, "unknown": 0, "not_sent": 0, "retried": 0}
    assert stored(nsqd) == count + children


def test_a_thread_that_publishes_alone_gets_a_lease(nsqd: Running) -> None:
    check(
        nsqd,
        """
    count = leased()
    for _ in range(500):
        producer.publish("t", b"x")
        producer.publish("t", b"x", defer=0.001)
        producer.multi_publish("t", [b"x"] * 3)
    report(count + 500 * 5)
    """,
    )


def test_threads_that_come_and_go_beside_it_lose_nothing(nsqd: Running) -> None:
    check(
        nsqd,
        """
    def beside():
        for _ in range(20):
            producer.publish("t", b"beside")
            producer.publish_async("t", b"beside").get(timeout=60)

    count = 0
    for _ in range(5):
        count += leased()
        threads = [threading.Thread(target=beside) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            producer.publish("t", b"x")
        for thread in threads:
            thread.join()
        count += 50 + 3 * 40
    report(count)
    """,
    )


def test_heartbeats_are_answered_while_the_borrower_sleeps_and_while_it_publishes(nsqd: Running) -> None:
    check(
        nsqd,
        """
    producer = Producer(sys.argv[1], heartbeat_interval=1, on_disconnect=lambda *given: lost.append(str(given)))
    count = leased()
    time.sleep(3.2)  # longer than nsqd waits for an answer to its heartbeats
    assert producer._running.pool.lone_caller._lease is None
    count += leased()
    end = time.monotonic() + 3.2
    while time.monotonic() < end:
        producer.publish("t", b"x")
        count += 1
    report(count)
    """,
    )


def test_signal_handlers_that_publish_in_the_middle_of_a_publish(nsqd: Running) -> None:
    check(
        nsqd,
        """
    handled, running = [], []

    def handler(*_):
        # One in the middle of another, but not without end where publishes take longer than the timer.
        if len(handled) + len(running) < 300 and len(running) < 5:
            running.append(1)
            producer.publish("t", b"signal")
            handled.append(running.pop())

    count = leased()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while len(handled) < 300:
        producer.publish("t", b"x")
        count += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    report(count + len(handled))
    """,
    )


def test_a_signal_handler_that_waits_for_another_threads_publish(nsqd: Running) -> None:
    """The handler runs in the middle of a publish, whose connection the other thread needs."""
    check(
        nsqd,
        """
    handled = []

    def handler(*_):
        if len(handled) < 50:
            thread = threading.Thread(target=producer.publish, args=("t", b"other"))
            thread.start()
            thread.join()
            handled.append(1)

    signal.signal(signal.SIGALRM, handler)
    count = 0
    for _ in range(50):
        count += leased()
        before = len(handled)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while len(handled) == before:
            producer.publish("t", b"x")
            count += 1
    report(count + len(handled))
    """,
    )


def test_an_exception_of_a_signal_handler_leaves_the_connection_in_order(nsqd: Running) -> None:
    [line] = run_script(
        BEGIN
        + """
    def handler(*_):
        raise KeyboardInterrupt

    leased()
    interrupted = 0
    signal.signal(signal.SIGALRM, handler)
    while interrupted < 100:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while True:
                producer.publish("t", b"x")
        except KeyboardInterrupt:
            interrupted += 1
        for _ in range(20):
            producer.publish("t", b"y")
    assert producer.close(timeout=60)
    report(0)
    """,
        nsqd.tcp_address,
    )
    _, lost, outcomes = json.loads(line)
    assert lost == [str((nsqd.tcp_address, None))]
    # An interrupted publish may be stored, unless it counts as not sent; if its answer came, it is confirmed.
    assert (outcomes["refused"], outcomes["unknown"]) == (0, 0)
    assert outcomes["confirmed"] <= stored(nsqd) <= outcomes["confirmed"] + 100 - outcomes["not_sent"]


def test_a_fork_during_a_lease(nsqd: Running) -> None:
    check(
        nsqd,
        """
    count = leased()
    for each in range(10):
        child = os.fork()
        if not child:
            try:
                for _ in range(20):
                    producer.publish("t", b"child", timeout=30)
                stats = producer.stats()
                status = 0 if stats["confirmed"] == 20 and len(stats["connections"]) == 1 else 1
            except BaseException:
                status = 2
            os._exit(status)
        for _ in range(20):
            producer.publish("t", b"parent")
        assert os.waitpid(child, 0) == (child, 0)
        count += 20 + leased()
    report(count)
    """,
        children=200,
    )


def test_a_fork_in_a_signal_handler_in_the_middle_of_a_publish(nsqd: Running) -> None:
    check(
        nsqd,
        """
    children = []

    def handler(*_):
        child = os.fork()
        if not child:
            os._exit(0)
        children.append(child)

    signal.signal(signal.SIGALRM, handler)
    count = 0
    for number in range(1, 21):
        count += leased()
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while len(children) < number:
            producer.publish("t", b"x")
            count += 1
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
    report(count)
    """,
    )


def test_close_from_another_thread_during_a_lease(nsqd: Running) -> None:
    lines = run_script(
        BEGIN
        + """
    count = leased()
    closed = []
    threading.Timer(0.1, lambda: closed.append(producer.close(timeout=60))).start()
    try:
        while True:
            producer.publish("t", b"x")
            count += 1
    except NSQError as exc:
        print(type(exc).__name__)
    while not closed:
        time.sleep(0.01)
    assert closed == [True]
    report(count)
    """,
        nsqd.tcp_address,
    )
    assert lines[0] in ("NotRunning", "NotSent")
    count, _, outcomes = json.loads(lines[1])
    assert (outcomes["confirmed"], outcomes["unknown"]) == (count, 0)
    assert stored(nsqd) == count


def test_publishes_keep_their_order_across_publish_async(taker: ScriptedNsqd) -> None:
    def publish() -> list[bytes]:
        bodies = []
        results = []
        for number in range(300):
            body = b"%d" % number
            bodies.append(body)
            if number % 30 == 29:
                results.append(producer.publish_async("t", body))
            else:
                producer.publish("t", body)
        for result in results:
            result.get(timeout=PATIENCE)
        return bodies

    thread = ThreadPool(1)
    with Producer(taker.address, own_thread=True, timeout=PATIENCE) as producer:
        assert thread.spawn(publish).get(timeout=PATIENCE) == taker.bodies
    thread.kill()


def test_a_thread_with_a_hub_or_replicas_or_batches_gets_none(taker: ScriptedNsqd) -> None:
    def publish(producer: Producer) -> None:
        for _ in range(50):
            producer.publish("t", b"x")
        assert producer._started().pool.lone_caller._lease is None

    with Producer(taker.address, own_thread=True) as producer:
        publish(producer)  # with the test's hub
    thread = ThreadPool(1)
    with Producer(taker.address, own_thread=True, batching=True) as producer:
        thread.spawn(publish, producer).get(timeout=PATIENCE)
    with good_nsqd() as second:
        addresses = [taker.address, second.address]
        with Producer(addresses, own_thread=True) as producer:
            thread.spawn(publish, producer).get(timeout=PATIENCE)
        with Producer(addresses, own_thread=True, replicas=2) as producer:
            thread.spawn(publish, producer).get(timeout=PATIENCE)
    thread.kill()
