"""Many publishes while connections are reset at random and nsqds go away and come back.

GNSQ_LIKE_CHAOS says how many publishes (100000 for the full size); the default keeps ``make test`` quick.
"""

import os
import random
from collections import Counter
from contextlib import ExitStack

import gevent
import pytest
from gevent.event import Event

from gnsq_like import NsqdHTTPClient, Producer, Reader
from gnsq_like.errors import NotSent, OutcomeUnknown, PublishRefused
from gnsq_like.testing.proxy import FaultProxy
from tests.support.daemons import running_nsqd, wait_for

COUNT = int(os.environ.get("GNSQ_LIKE_CHAOS", "4000"))
GREENLETS = 100
#: Seconds between two publishes of a greenlet, at most: the troubles are to have time.
PAUSE = 0.1


@pytest.mark.timeout(120 + COUNT / 100)
@pytest.mark.parametrize(
    "options", [{}, {"batching": True}, {"retry_unknown": True}], ids=["plain", "batching", "again"]
)
@pytest.mark.parametrize(
    ("kind", "restarts"), [("ours", False), pytest.param("real", True, marks=pytest.mark.real_nsqd)]
)
def test_nothing_confirmed_is_lost_and_nothing_unsent_arrives(kind, restarts, options):
    draw = random.Random(4)
    outcomes: dict[type[Exception] | None, list[bytes]] = {
        None: [],
        NotSent: [],
        PublishRefused: [],
        OutcomeUnknown: [],
    }
    with ExitStack() as stack:
        nsqds = [stack.enter_context(running_nsqd(kind, node_id=number)) for number in range(3)]
        proxies = [stack.enter_context(FaultProxy(nsqd.tcp_address)) for nsqd in nsqds]
        for nsqd in nsqds:
            with NsqdHTTPClient(nsqd.http_address) as client:
                client.create_topic("t")
                client.create_channel("t", "c")
        addresses = [proxy.address for proxy in proxies]
        producer = stack.enter_context(Producer(addresses, timeout=5, max_redial_delay=0.2, **options))

        def publish(number):
            for each in range(number, COUNT, GREENLETS):
                body = b"%d" % each
                try:
                    producer.publish("t", body)
                except (NotSent, PublishRefused, OutcomeUnknown) as exc:
                    outcomes[type(exc)].append(body)
                else:
                    outcomes[None].append(body)
                gevent.sleep(draw.uniform(0, PAUSE))  # the troubles need time to happen

        over = Event()
        done: Counter[str] = Counter()

        def reset():
            while not over.wait(draw.uniform(0.01, 0.1)):
                draw.choice(proxies).reset()
                done["resets"] += 1

        def restart():
            while not over.wait(draw.uniform(0.1, 0.3)):
                nsqd = draw.choice(nsqds)
                nsqd.stop()
                gevent.sleep(draw.uniform(0, 0.2))  # away for so long
                nsqd.start()
                done["restarts"] += 1

        troubles = [gevent.spawn(each) for each in ((reset, restart) if restarts else (reset,))]
        publishing = [gevent.spawn(publish, number) for number in range(GREENLETS)]
        gevent.joinall(publishing, raise_error=True)
        stats = producer.stats()
        over.set()
        gevent.joinall(troubles, raise_error=True)
        arrived: Counter[bytes] = Counter()

        def handler(message):
            arrived[message.body] += 1

        tcp_addresses = [nsqd.tcp_address for nsqd in nsqds]
        with Reader("t", "c", handler, nsqd_tcp_addresses=tcp_addresses, max_in_flight=1000) as reader:
            wait_for(lambda: drained(nsqds) and len(reader.stats()["connections"]) == 3, timeout=60)

    counts = {getattr(outcome, "__name__", "confirmed"): len(found) for outcome, found in outcomes.items()}
    print(f"\n{kind} {options}: {counts}, {dict(done)}, {stats['retried']} sent again")
    assert sum(map(len, outcomes.values())) == COUNT
    assert [body for body in outcomes[None] if not arrived[body]] == []
    assert [body for body in outcomes[NotSent] + outcomes[PublishRefused] if arrived[body]] == []
    assert len(outcomes[None]) > COUNT / 2
    if "retry_unknown" not in options:
        assert [body for body in outcomes[None] if arrived[body] > 1] == []


def drained(nsqds):
    for nsqd in nsqds:
        with NsqdHTTPClient(nsqd.http_address) as client:
            for topic in client.stats(topic="t")["topics"]:
                for found in [topic, *topic["channels"]]:
                    if found["depth"] or found.get("in_flight_count"):
                        return False
    return True
