"""nsq_relay and nsq_run --relay as processes; and the campaign of ``tests/contrib/django/outbox/test_relaying.py``.

``GNSQ_LIKE_ORDERS=10000 pytest tests/contrib/django/outbox/test_relaying.py -m servers -k campaign`` is the full one.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Reader
from gnsq_like.contrib.outbox import Event
from gnsq_like.testing import FaultProxy
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.outboxes import Published
from tests.support.web import Server, channel_of, get

# -- the campaign against an outbox: relays are killed and nsqds restarted at random while orders are placed

#: Orders in all; ``GNSQ_LIKE_ORDERS=10000`` for the full campaign.
ORDERS = int(os.environ.get("GNSQ_LIKE_ORDERS", "200"))
#: How many processes place them.
WRITERS = 4
#: Seconds between two faults, at random.
_PAUSE = (0.1, 2.0)
#: Seconds for the end; the machine may do other things.
_PATIENCE = 300.0


class Campaign:
    """One run.

    :param start: starts a process with these arguments and this environment: "relay", or "orders", a name and a count
    :param unpublished: how many rows the outbox has to publish
    :param replicas: how many nsqds each message goes to
    """

    def __init__(
        self,
        kind: Any,
        start: Callable[..., Server],
        unpublished: Callable[[], int],
        *,
        seed: int,
        relays: int = 2,
        replicas: int = 1,
    ) -> None:
        self._kind = kind
        self._start = start
        self._unpublished = unpublished
        self._chance = random.Random(seed)
        self._relay_count = relays
        #: What has passed on the way to each nsqd.
        self.published = [Published() for _ in range(replicas)]
        #: The orders in the messages, and how often each arrived.
        self.arrived: Counter[str] = Counter()
        self._bodies: set[bytes] = set()
        self.faults: Counter[str] = Counter()
        self.committed: set[str] = set()

    def run(self) -> None:
        """Place the orders, and wait until all have arrived."""
        with ExitStack() as stack:
            nsqds = [stack.enter_context(running_nsqd(self._kind)) for _ in self.published]
            proxies = [
                stack.enter_context(FaultProxy(nsqd.tcp_address, observer=published))
                for nsqd, published in zip(nsqds, self.published, strict=True)
            ]
            environment = {
                "NSQ_NSQD_TCP_ADDRESSES": ",".join(proxy.address for proxy in proxies),
                "NSQ_REPLICAS": str(len(nsqds)),
            }

            def start(*arguments: str) -> Server:
                server = self._start(*arguments, **environment)
                stack.callback(server.close)
                return server

            addresses = [nsqd.tcp_address for nsqd in nsqds]
            reader = Reader("orders", "all", self._arrive, nsqd_tcp_addresses=addresses, max_in_flight=500)
            stack.callback(reader.stop)
            reader.start()
            relays = [start("relay") for _ in range(self._relay_count)]
            writers = [start("orders", f"writer{number}", str(ORDERS // WRITERS)) for number in range(WRITERS)]
            self._fault_until(writers, relays, nsqds, lambda: start("relay"))
            assert [writer.process.returncode for writer in writers] == [0] * WRITERS, writers[0].log
            self.committed = set(writers[0].noted("committed"))
            wait_for(lambda: not self._unpublished(), "the outbox to be empty", _PATIENCE)
            wait_for(lambda: self.committed <= set(self.arrived), "the messages", _PATIENCE)
            # One that is still starting has no handler for the signal yet.
            assert {relay.end() for relay in relays} <= {0, -signal.SIGTERM}, relays[0].log

    def _fault_until(
        self, writers: list[Server], relays: list[Server], nsqds: list[Running], start_relay: Callable[[], Server]
    ) -> None:
        """Until the orders are placed, and there have been some faults of each kind."""
        while any(writer.process.poll() is None for writer in writers) or min(self.faults.values(), default=0) < 2:
            gevent.sleep(self._chance.uniform(*_PAUSE))
            if self._chance.random() < 0.5:
                victim = self._chance.randrange(len(relays))
                relays[victim].end(signal.SIGKILL)
                relays[victim] = start_relay()
                self.faults["relay killed"] += 1
            elif len(nsqds) == 1:
                nsqds[0].stop()
                nsqds[0].start()
                self.faults["nsqd restarted"] += 1
            else:
                self._kill(self._chance.choice(nsqds))
                self.faults["nsqd killed"] += 1
            if len(self.faults) < 2:
                self.faults.update({"relay killed": 0, "nsqd restarted" if len(nsqds) == 1 else "nsqd killed": 0})

    def _kill(self, nsqd: Running) -> None:
        """Of what it had, the others have the only copies. So none of them is killed before these have arrived."""
        nsqd.kill()
        gevent.sleep(self._chance.uniform(*_PAUSE))
        nsqd.start()
        sent = {body for published in self.published for body in published.bodies}
        wait_for(lambda: sent <= self._bodies, "the copies", _PATIENCE)

    def _arrive(self, message: Message) -> None:
        self._bodies.add(message.body)
        self.arrived[Event.of(message.body).data["order"]] += 1

    def check(self) -> None:
        """Each committed order arrived, no other did, and each key was published in order."""
        assert self.committed
        assert set(self.arrived) == self.committed
        for published in self.published:
            firsts: dict[str, list[int]] = {}
            for body in dict.fromkeys(published.bodies):
                event = Event.of(body)
                if event.sequence is not None:
                    firsts.setdefault(event.key, []).append(event.sequence)
            assert len(firsts) > 5
            assert firsts == {key: list(range(1, len(numbers) + 1)) for key, numbers in firsts.items()}

    def report(self) -> str:
        """Its figures, in a line."""
        return json.dumps(
            {
                "orders": ORDERS,
                "committed": len(self.committed),
                "arrived": self.arrived.total(),
                "published": [len(published.bodies) for published in self.published],
                **self.faults,
            }
        )


pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 + ORDERS // 5)]


def test_messages_are_relayed_and_reported(project: Project) -> None:
    with running_nsqd() as nsqd:
        environment: dict[str, Any] = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "NSQ_METRICS": "1"}
        assert project.manage("place_orders", "early", "20", **environment).returncode == 0
        done = project.manage("nsq_relay", "--once", **environment)
        assert (done.stdout, done.stderr) == ("Published 16\n", "")
        listening = r"health on http://127\.0\.0\.1:(\d+)/healthz"
        relay = project.running("nsq_relay", "--health", "127.0.0.1:0", listening=listening, **environment)
        with relay as server:
            status, answer = get(server.port, "/healthz")
            assert (status, json.loads(answer)["status"]) == (200, "ok")
            nsqd.stop()
            assert project.manage("place_orders", "waiting", "20", **environment).returncode == 0
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["status"] == "degraded")
            wait_for(lambda: 'nsq_outbox_waiting_messages{outbox="default"} 0.0' not in get(server.port, "/metrics")[1])
            nsqd.start()
            committed = len(server.noted("committed"))
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["outboxes"][0]["published"] == committed - 16)
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["status"] == "ok")
            wait_for(
                lambda: (
                    f'nsq_outbox_published_messages_total{{outbox="default"}} {committed - 16}.0'
                    in get(server.port, "/metrics")[1]
                )
            )
            assert server.end() == 0


@pytest.mark.parametrize("patched", ["", "1"])
def test_readers_and_the_relay_in_one_process(project: Project, patched: str) -> None:
    with running_nsqd() as nsqd:
        environment: dict[str, Any] = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "PATCHED": patched}
        with project.running("nsq_run", "book", "--relay", **environment) as server:
            assert project.manage("place_orders", "some", "20", **environment).returncode == 0
            wait_for(lambda: len(project.lines("book")) == len(server.noted("committed")), "the readers")
            assert server.end() == 0
        assert channel_of(nsqd, "orders")["depth"] == 0


# -- the campaign ---------------------------------------------------------------------------------------


UNPUBLISHED = "SELECT count(*) FROM gnsq_like_outbox_outboxmessage WHERE published_at IS NULL"


@pytest.mark.parametrize(
    ("database", "kind", "replicas"),
    [
        ("sqlite", "process", 1),
        ("postgresql", "process", 2),
        pytest.param("postgresql", "real", 1, marks=pytest.mark.real_nsqd),
    ],
    indirect=["database"],
)
def test_campaign(
    project: Project,
    database: tuple[dict[str, Any], Callable[[str], list[Any]]],
    kind: str,
    replicas: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common, ask = database
    commands = {"relay": ["nsq_relay"], "orders": ["place_orders"]}

    def start(what: str, *arguments: str, **environment: str) -> Server:
        command = ["-u", "manage.py", *commands[what], *arguments]
        return Server(command, project.path, **environment, **common)

    campaign = Campaign(kind, start, lambda: ask(UNPUBLISHED)[0][0], seed=1, replicas=replicas)
    campaign.run()
    campaign.check()
    with capsys.disabled():
        print(f"\n{'postgresql' if common else 'sqlite'}, {kind}, replicas={replicas}: {campaign.report()}")
