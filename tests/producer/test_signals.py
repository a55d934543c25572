"""Signal handlers that publish, whatever code of the Producer they interrupt."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.daemons import Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script

SCRIPT = """
    from gevent import monkey
    monkey.patch_all()
    import json, signal, sys, gevent
    from gnsq_like import Producer
    from gnsq_like.errors import NotSent

    address, how, batching = sys.argv[1], sys.argv[2], sys.argv[3] == "batching"
    lost, results, refused, confirmed = [], [], [], []
    producer = Producer(address, batching=batching, timeout=60, on_disconnect=lambda *given: lost.append(str(given)))
    producer.publish("t", b"first")

    def handler(*_):
        if len(results) + len(refused) + len(confirmed) == 300:
            signal.setitimer(signal.ITIMER_REAL, 0)
        elif how == "publish_async":
            results.append(producer.publish_async("t", b"signal"))
        else:
            try:
                producer.publish("t", b"signal")
                confirmed.append(1)
            except NotSent as exc:
                refused.append(str(exc))

    def work():
        while len(results) + len(refused) + len(confirmed) < 300:
            producer.publish("t", b"work")
            published.append(1)

    published = []
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    gevent.joinall([gevent.spawn(work) for _ in range(20)], raise_error=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert [result.get(timeout=60) for result in results] == [None] * len(results)
    assert all("signal handler" in each for each in refused), refused
    stats = producer.stats()
    total = 1 + len(published) + len(results) + len(confirmed)
    print(json.dumps([total, lost, {name: stats[name] for name in ("confirmed", "unknown", "not_sent", "retried")}]))
"""


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("batching", ["single", "batching"])
@pytest.mark.parametrize("how", ["publish", "publish_async"])
def test_a_signal_handler_publishes_or_is_refused_and_harms_nothing(nsqd: Running, how: str, batching: str) -> None:
    [line] = run_script(SCRIPT, nsqd.tcp_address, how, batching)
    total, lost, stats = json.loads(line)
    assert lost == []
    assert stats == {"confirmed": total, "unknown": 0, "not_sent": 0, "retried": 0}
    with NsqdHTTPClient(nsqd.http_address) as client:
        [topic] = client.stats(topic="t")["topics"]
    assert topic["message_count"] == total


def test_in_the_hub_a_publish_is_refused_before_it_is_sent_and_an_async_one_is_sent(nsqd: Running) -> None:
    [line] = run_script(
        """
        from gevent import monkey
        monkey.patch_all()
        import signal, sys, gevent, os
        from gnsq_like import Producer
        from gnsq_like.errors import NotSent

        producer = Producer(sys.argv[1])
        producer.publish("t", b"first")
        results = []

        def handler(*_):
            try:
                producer.publish("t", b"refused")
            except NotSent:
                results.append(producer.publish_async("t", b"async"))

        signal.signal(signal.SIGUSR1, handler)
        kill = gevent.get_hub().loop.timer(0.1)
        kill.start(os.kill, os.getpid(), signal.SIGUSR1)  # and the hub takes it
        with gevent.Timeout(60):
            while not results:
                gevent.sleep(0.01)
        print(results[0].get(timeout=60), producer.stats()["confirmed"])
        """,
        nsqd.tcp_address,
    )
    assert line == "None 2"
