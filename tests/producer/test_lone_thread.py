"""A thread without a hub that publishes: whatever happens in the middle of a publish, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.daemons import KINDS, Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script

BEGIN = """
    import os, signal, sys, threading, time
    from gnsq_like import Producer
    from gnsq_like.errors import NSQError

    lost = []
    producer = Producer(sys.argv[1], timeout=60, on_disconnect=lambda *given: lost.append(str(given)))

    def row():
        for _ in range(20):
            producer.publish("t", b"row")
        return 20

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

    count = row()
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
        count += row()
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

    row()
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


def test_a_fork_between_publishes(nsqd: Running) -> None:
    check(
        nsqd,
        """
    count = row()
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
        count += 20 + row()
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
        count += row()
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while len(children) < number:
            producer.publish("t", b"x")
            count += 1
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
    report(count)
    """,
    )


def test_close_from_another_thread(nsqd: Running) -> None:
    lines = run_script(
        BEGIN
        + """
    count = row()
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
