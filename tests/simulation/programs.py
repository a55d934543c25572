"""The programs of a scenario: Readers with handlers of all kinds, and Producers that publish in all ways."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import gevent

import gnsq_like
from gnsq_like import Batch, Deduplicate, Message, Requeue, errors
from tests.simulation.cluster import Cluster
from tests.simulation.ledger import CONFIRMED, NOT_SENT, PENDING, UNKNOWN, Ledger
from tests.simulation.process import Process
from tests.simulation.scenario import Scenario

#: The channel of all Readers.
CHANNEL = "c"
#: How long turns of connections last; short ones, so that more of them are taken.
_TURNS: tuple[dict[str, Any], ...] = ({}, {"low_rdy_idle_timeout": 1.0, "low_rdy_timeout": 2.0})
#: Seconds between two rounds of discovery.
POLL_INTERVAL = 10.0
#: Seconds beyond its timeout that a publish may take, without what its process stood still.
_TOLERANCE = 0.05


class Program:
    """A process of its own."""

    def __init__(self, cluster: Cluster, name: str, scenario: Scenario, ledger: Ledger) -> None:
        self.cluster = cluster
        self.process: Process = cluster.world.process(name)
        self.options = scenario.options
        self.ledger = ledger
        self.random = Random(f"{scenario.seed} {name}")

    @property
    def now(self) -> float:
        return self.cluster.now

    def fail(self, text: str) -> None:
        self.ledger.fail(f"@{self.now:.3f} {self.process.name}: {text}")

    def late(self, due: float) -> float:
        """Seconds since ``due`` for which its process has not stood still."""
        return self.now - due - self.process.stood_still(due)

    def lateness(self, end: Callable[[float], object], timeout: float) -> float:
        """Call ``end(timeout)`` in its process; returns by how many seconds it took longer."""

        def call() -> float:
            due = self.now + timeout  # here, because a process that stands still begins later
            end(timeout)
            return self.late(due)

        return float(self.process.run(call))

    def end(self) -> None:
        """Stop for good."""
        raise NotImplementedError

    def _connection_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"connect_timeout": 3.0, "lookupd_poll_interval": POLL_INTERVAL}
        if self.options["compression"]:
            options[self.options["compression"]] = "prefer"
        return options


class ReaderProgram(Program):
    """A Reader.

    :param number: the first has the form of handler that is drawn; the others have the usual one
    """

    FORMS = ("handler", "handler", "batch", "pull", "async", "thread")

    def __init__(self, cluster: Cluster, number: int, scenario: Scenario, ledger: Ledger) -> None:
        super().__init__(cluster, f"reader-{number}", scenario, ledger)
        draw = self.random.choice
        self.form = draw(self.FORMS) if number == 0 else "handler"
        #: Handlers answer at once, without failing.
        self.is_calm = False
        #: While a stop is under way, and until the next start.
        self.is_stopped = False
        #: Until it has drained to a lower window, the sum that it may use.
        self.steered_at = 0.0
        self.backoff = draw([0, 0, 5.0])
        self.max_redial_delay = draw([1.0, 5.0])
        self.heartbeat_interval = draw([1.0, 5.0, 30.0])
        #: Drawn by a generator of its own, so that the rest of a seed stayed the same.
        self._turns = Random(f"{scenario.seed} turns {number}").choice(_TURNS)
        self.reader: gnsq_like.Reader
        self._puller: gevent.Greenlet | None = None
        #: Greenlets that answer after their handlers have returned.
        self._answering: dict[gevent.Greenlet, None] = {}
        #: Handlers that run.
        self._handling = 0
        self.process.run(self._make)

    def _make(self) -> None:
        topics: Any = self.options["topics"]
        if self.options["pattern"] and self.cluster.nsqlookupds:
            topics = re.compile("[tuv]")
        elif len(topics) == 1:
            topics = topics[0]
        handler: Any = {
            "handler": self._handle,
            "batch": Batch(
                self._handle_many, size=self.random.choice([1, 5, 50]), interval=self.random.choice([0.1, 1, 10])
            ),
            "pull": None,
            "async": self._handle_later,
            "thread": self._handle,
        }[self.form]
        if self.options["deduplicate"] and self.form == "handler":
            handler = Deduplicate(self._handle, key=lambda message: message.body, window=1e6, busy_delay=0.2)
        self.reader = gnsq_like.Reader(
            topics,
            CHANNEL,
            handler,
            **self.cluster.discovery(),
            **self._connection_options(),
            max_in_flight=self.random.choice([1, 2, 3, 5, 20, 100]),
            max_attempts=0,
            max_backoff_duration=self.backoff,
            **self._turns,
            default_requeue_delay=0.5,
            adaptive_rdy=self.random.random() < 0.8,
            heartbeat_interval=self.heartbeat_interval,
            max_redial_delay=self.max_redial_delay,
            spawn="thread" if self.form == "thread" else "greenlet",
        )
        self.start()

    def start(self) -> None:
        """In its process."""
        self.is_stopped = False
        self.steered_at = self.now
        if self.form == "pull":
            if self._puller is None:
                self._puller = gevent.spawn(self._pull)
        else:
            self.reader.start()

    def _pull(self) -> None:
        while True:
            for message in self.reader:
                if not self.is_calm and self.random.random() < 0.02:  # nobody answers it
                    self.ledger.doubtful.add(message.body)
                    continue
                try:
                    with message:
                        self._handle(message)
                except (ValueError, Requeue, gevent.GreenletExit, gevent.Timeout):
                    pass
            while self.is_stopped:
                gevent.sleep(0.05)

    def _handled(self, message: Message) -> None:
        travel = 10 * self.options["latency"] + 5 * self.options["jitter"] + 0.1
        if message.timeout_at - time.monotonic() < travel:  # its FIN may be late
            self.ledger.doubtful.add(message.body)
        # By then, a dead connection is found, and nsqd sees that a message is not answered.
        settled_after = 2.5 * self.heartbeat_interval + float(self.options["msg_timeout"]) + 5.0
        self.ledger.handling_ended(message, self.now, settled_after)

    # -- handlers --------------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        self._check_body(message.body)
        draw = self.random.random
        self._handling += 1
        try:
            if not self.is_calm:
                self._take_time(message, draw())
                self._perhaps_raise(message, draw())
        finally:
            self._handling -= 1
        self._handled(message)

    def _take_time(self, message: Message, x: float) -> None:
        timeout = self.options["msg_timeout"]
        if x < 0.01:  # too slow, sometimes
            self.ledger.doubtful.add(message.body)
            gevent.sleep(self.random.random() * timeout * 1.5)
        elif x < 0.03:
            self.ledger.doubtful.add(message.body)
            gevent.sleep(timeout * 0.7)
            message.touch()
            gevent.sleep(timeout * 0.7)
        else:
            gevent.sleep(self.random.random() ** 2 * 0.1)

    def _perhaps_raise(self, message: Message, x: float) -> None:
        if x < 0.07:
            self.ledger.doubtful.add(message.body)
        if x < 0.02:
            raise ValueError("a handler fails")
        if x < 0.04:
            raise Requeue(delay=self.random.choice([0, 0.5, 3]), backoff=False)
        if x < 0.045:
            raise gevent.GreenletExit
        if x < 0.05:
            raise gevent.Timeout
        if x < 0.06:  # answers itself, and then once more
            message.finish()
            message.requeue()
        elif x < 0.07 and self.form != "thread":  # another greenlet answers
            message.enable_async()
            self._answer_later(self._answer_late, message, self.random.random() * 0.1)

    def _handle_later(self, message: Message) -> None:
        message.enable_async()
        self._answer_later(self._answer_after, message)

    def _answer_after(self, message: Message) -> None:
        try:
            self._handle(message)
        except (ValueError, Requeue, gevent.GreenletExit, gevent.Timeout):
            if not message.has_responded:
                message.requeue(0, backoff=False)
        else:
            self._answer(message)

    def _answer_later(self, answer: Callable[..., object], *arguments: Any) -> None:
        greenlet = gevent.spawn(answer, *arguments)
        self._answering[greenlet] = None
        greenlet.rawlink(self._answering.pop)

    def _answer_late(self, message: Message, seconds: float) -> None:
        gevent.sleep(seconds)
        self._answer(message)

    @staticmethod
    def _answer(message: Message) -> None:
        if not message.has_responded:
            message.finish()

    def _handle_many(self, messages: list[Message]) -> None:
        for message in messages:
            self._check_body(message.body)
        if not self.is_calm:
            gevent.sleep(self.random.random() ** 2 * 0.2)
            if self.random.random() < 0.03:
                self.ledger.doubtful.update(message.body for message in messages)
                raise ValueError("a batch fails")
        for message in messages:
            self._handled(message)

    def _check_body(self, body: bytes) -> None:
        if not re.fullmatch(rb"#[0-9]+\|x*", body) and body not in self.ledger.damaged:
            self.fail(f"a body is corrupt: {body[:40]!r}")

    # -- steering --------------------------------------------------------------------------------------

    def steer(self, random: Random) -> None:
        """Change its window, pause it, or limit its rate, for a while."""
        x = random.random()
        self.steered_at = self.now
        if x < 0.5:
            self.process.run(setattr, self.reader, "max_in_flight", random.choice([0, 1, 2, 3, 7, 20, 100]))
        elif x < 0.7:
            self.process.run(self.reader.pause)
            gevent.sleep(random.random() * 5)
            self.process.run(self.reader.resume)
        else:
            self.process.run(setattr, self.reader, "rate_limit", random.choice([0.5, 5, 100]))
            gevent.sleep(random.random() * 8)
            self.process.run(setattr, self.reader, "rate_limit", None)
        self.steered_at = self.now

    def be_calm(self) -> None:
        """From now on, handlers answer at once, without failing."""
        self.is_calm = True
        self.process.run(setattr, self.reader, "max_in_flight", 100)
        self.steered_at = self.now

    def stop(self, timeout: float) -> None:
        """Stop it; it must not take much longer than ``timeout``."""
        self.is_stopped = True
        late = self.lateness(self.reader.stop, timeout)
        if late > 1.0 + 4 * self.options["latency"]:
            self.fail(f"stop({timeout:g}) took {late:.2f} s longer")
        stats = self.reader.stats()
        if stats["state"] != "stopped":
            self.fail(f"it is {stats['state']} after a stop")
        self.steered_at = self.now

    def stop_for_a_while(self, random: Random) -> None:
        """Stop it, unless it is stopped already, and start it again."""
        if self.is_stopped:
            return
        self.stop(random.choice([0.0, 0.5, 5.0, 30.0]))
        gevent.sleep(random.random() * 3)
        self.process.run(self.start)

    def end(self) -> None:
        """Stop it for good."""
        self.stop(10.0)
        if self._puller is not None:
            self.process.run(self._puller.kill)
        self.process.run(gevent.killall, list(self._answering))
        if self.form == "thread":  # nothing ends a handler that runs in a thread
            self.cluster.wait(lambda: not self._handling)


class ProducerProgram(Program):
    """A Producer and the greenlets that publish with it."""

    def __init__(self, cluster: Cluster, number: int, scenario: Scenario, ledger: Ledger) -> None:
        super().__init__(cluster, f"producer-{number}", scenario, ledger)
        self._number = number
        self._count = 0
        self._ends = False
        #: How many messages each of its Producers was given.
        self._given: dict[gnsq_like.Producer, int] = {}
        self.producer: gnsq_like.Producer = self.process.run(self._make)
        #: Publishes that have not ended.
        self.pending = 0
        self._publishers = [self.process.spawn(self._publish_on) for _ in range(2)]

    def _make(self) -> gnsq_like.Producer:
        draw = self.random.choice
        producer = gnsq_like.Producer(
            self.cluster.tcp_addresses,
            **self._connection_options(),
            timeout=3.0,
            replicas=self.options["replicas"],
            batching=self.random.random() < 0.3,
            linger=draw([0, 0.01]),
            fail_fast=self.random.random() < 0.2,
            retry_unknown=self.random.random() < 0.2,
            heartbeat_interval=draw([1.0, 5.0, 30.0]),
            max_pending_count=draw([2, 10000]),
            max_redial_delay=5.0,
        )
        self._given[producer] = 0
        return producer

    def change(self, random: Random) -> None:
        """Go on with a new Producer, and close the old one, in time."""
        timeout = random.choice([0.01, 1.0])
        old, self.producer = self.producer, self.process.run(self._make)
        late = self.lateness(old.close, timeout)
        if late > 2.3:
            self.fail(f"close({timeout:g}) took {late:.2f} s longer")

    def _body(self) -> bytes:
        self._count += 1
        body = b"#%d%d|" % (self._number + 1, self._count) + b"x" * self.random.choice([0, 0, 5, 300])
        self.ledger.publishing(body)
        if self.options["replicas"] > 1:
            self.ledger.doubtful.add(body)
        return body

    def _publish_on(self) -> None:
        draw = self.random
        while not self._ends:
            timeout = draw.choice([0.05, 0.5, 3, 3, 10])
            topic = draw.choice(self.options["topics"])
            x = draw.random()
            producer = self.producer
            publish = partial(producer.publish, topic, timeout=timeout)
            if x < 0.1:
                bodies = [self._body() for _ in range(draw.choice([2, 10]))]
                call = partial(producer.multi_publish, topic, bodies, timeout=timeout)
                self._publish(producer, bodies, timeout, call)
            elif x < 0.2:
                body = self._body()
                self._publish(producer, [body], timeout, partial(publish, body, defer=draw.random() * 5))
            elif x < 0.3:
                self._publish_async(producer, topic, timeout, draw.choice([1, 3, 15]))
            elif x < 0.35:
                self._abandon(producer, timeout, publish)
            else:
                body = self._body()
                self._publish(producer, [body], timeout, partial(publish, body))
            gevent.sleep(draw.expovariate(self.options["rate"]))

    def _publish(
        self, producer: gnsq_like.Producer, bodies: list[bytes], timeout: float, call: Callable[[], object]
    ) -> None:
        due = self.now + timeout
        self.pending += 1
        self._given[producer] += len(bodies)
        try:
            call()
            outcome = CONFIRMED
        except errors.NotSent:
            outcome = NOT_SENT
        except errors.OutcomeUnknown:
            outcome = UNKNOWN
        except errors.NotRunning:
            outcome = NOT_SENT
            self._given[producer] -= len(bodies)
        except errors.PublishRefused as exc:
            outcome = UNKNOWN
            self.fail(f"a publish was refused: {exc}")
        finally:
            self.pending -= 1
        late = self.late(due)
        if late > _TOLERANCE:
            self.fail(f"a publish took {late:.3f} s more than {timeout:g}, and is {outcome}")
        for body in bodies:
            self.ledger.ended(body, outcome, self.now)

    def _publish_async(self, producer: gnsq_like.Producer, topic: str, timeout: float, count: int) -> None:
        waiting = []
        for _ in range(count):
            body, due = self._body(), self.now + timeout
            try:
                waiting.append((body, producer.publish_async(topic, body, timeout=timeout)))
            except (errors.NotRunning, errors.NotSent):
                self.ledger.ended(body, NOT_SENT, self.now)
            late = self.late(due)
            if late > _TOLERANCE:
                self.fail(f"publish_async itself took {late:.3f} s more than {timeout:g}")
        for body, result in waiting:
            self._publish(producer, [body], timeout, result.get)

    def _abandon(self, producer: gnsq_like.Producer, timeout: float, publish: Callable[[bytes], object]) -> None:
        """A greenlet publishes, and is killed before long."""
        body = self._body()
        caller = gevent.spawn(self._publish, producer, [body], timeout, partial(publish, body))
        gevent.sleep(self.random.choice([0, 0.001, 0.1]))
        caller.kill()
        if self.ledger.outcomes[body] == PENDING:
            self.ledger.ended(body, UNKNOWN, self.now)

    def finish(self) -> None:
        """Publish no more; returns when all has ended."""
        self._ends = True
        gevent.joinall(self._publishers, timeout=60)
        gevent.killall(self._publishers)  # those that sleep for longer

    def end(self) -> None:
        """Close it; long after the last publish."""
        stats = self.producer.stats()
        if stats["waiting"]:
            self.fail(f"{stats['waiting']} publishes wait although all have ended")
        self.process.run(self.producer.close, 5.0)
        for producer, given in self._given.items():
            stats = producer.stats()
            counted = sum(stats[outcome] for outcome in ("confirmed", "refused", "unknown", "not_sent"))
            if counted != given:
                self.fail(f"stats() count {counted} of {given} messages: {stats}")
