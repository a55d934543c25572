"""The connections of a Reader, one for each topic of each nsqd: made, lost, and released when a topic is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import gevent

from gnsq_like.discovery.redial import Target
from gnsq_like.errors import NSQError
from gnsq_like.options import ReaderOptions
from gnsq_like.reader.running import Running
from gnsq_like.reader.subscription import Subscription
from gnsq_like.reader.topic_flow import ReaderCounts
from gnsq_like.runtime.hook_runner import HookRunner

logger = logging.getLogger(__name__)


class Subscriptions:
    """The table of one Reader, over all its starts.

    :param channel: the channel of all subscriptions
    :param report: called with (address, error) for errors after which the Reader goes on
    """

    def __init__(
        self, channel: str, options: ReaderOptions, hooks: HookRunner, report: Callable[[str, NSQError], object]
    ) -> None:
        self._channel = channel
        self._options = options
        self._hooks = hooks
        self._report = report
        self._table: dict[Target, Subscription] = {}
        #: Those connected since the start, and the number of reconnects.
        self._were_connected: set[Target] = set()
        self.reconnect_count = 0
        #: Set by begin().
        self._running: Running | None = None

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._table.values()))

    def __contains__(self, target: Target) -> bool:
        return target in self._table

    @property
    def targets(self) -> list[Target]:
        """What is connected."""
        return list(self._table)

    @property
    def were_any(self) -> bool:
        """Whether there was a connection since the start."""
        return bool(self._were_connected)

    def begin(self, running: Running) -> None:
        """The Reader starts."""
        self._running = running
        self._were_connected.clear()

    def clear(self) -> None:
        """The Reader has stopped."""
        self._table.clear()

    def connect(self, target: Target) -> NSQError | None:
        """Connect and subscribe once; returns the error, or None. May switch."""
        running = self._running
        assert running is not None
        flow = running.flow
        topic_flow = flow.topics.get(target.topic)
        if topic_flow is None:
            return None  # the topic is gone
        subscription = Subscription(
            target.address,
            topic_flow,
            self._channel,
            flow,
            running.handlers,
            running.hooks,
            adaptive=self._options.adaptive_rdy,
        )
        error = subscription.connect(
            self._options,
            on_error=self._report,
            on_close=self._ended,
            on_auth=lambda address, authorized: self._hooks.call("on_auth", address, authorized),
        )
        if error is not None:
            return error
        if flow.topics.get(target.topic) is not topic_flow:
            subscription.connection.close()  # the topic has gone meanwhile
            return None
        self._table[target] = subscription
        self.reconnect_count += target in self._were_connected
        self._were_connected.add(target)
        flow.add(subscription)
        self._hooks.call("on_connect", subscription.address)
        logger.info("subscribed to %s/%s at %s", target.topic, self._channel, target.address)
        return None

    def _ended(self, subscription: Subscription, error: NSQError | None) -> None:
        # In the connection's greenlet, at its end.
        running = self._running
        target = Target(subscription.target, subscription.topic)
        if running is None or self._table.get(target) is not subscription:
            return  # it had not subscribed
        del self._table[target]
        running.handlers.drop(subscription)
        subscription.drop_left()
        running.flow.lose(subscription)
        self._hooks.call("on_disconnect", subscription.address, error)
        if error is not None:
            logger.warning("%s", error)
        if subscription.drained is not None:
            running.redialer.forget([target])  # it was released
        elif running.redialer.lost(target) and running.poller is not None:
            running.poller.hurry()

    # -- topics that come and go --------------------------------------------------------------------

    def follow(self, targets: Iterable[Target], complete: bool) -> None:
        """These were found, for a pattern of topics; if ``complete``, there are no others. Never switches."""
        running = self._running
        assert running is not None
        listed = {target.topic for target in targets}
        for topic in listed:
            running.flow.follow(topic)
        if not complete:
            return
        connected = {target.topic for target in self._table}
        for topic in [topic for topic in running.flow.topics if topic not in listed and topic not in connected]:
            running.flow.release(topic)
            self._were_connected -= {target for target in self._were_connected if target.topic == topic}

    def release(self, targets: Iterable[Target]) -> None:
        """End the connections to these, which are gone, in order. Never switches."""
        for target in targets:
            subscription = self._table.get(target)
            if subscription is not None and subscription.drained is None:
                gevent.spawn(self._release, subscription)

    def _release(self, subscription: Subscription) -> None:
        running = self._running
        assert running is not None
        logger.info("%r is gone, and its connection is closed", subscription)
        drained = subscription.begin_to_end()
        running.flow.close(subscription)
        try:
            subscription.connection.close_subscription()
        except NSQError as exc:
            logger.info("%s", exc)
        for message in running.handlers.take_from(subscription):
            message.requeue(0, backoff=False)
        if subscription.in_flight:
            drained.wait(subscription.msg_timeout)  # then nsqd gives them to others
        subscription.connection.close()

    def stats_by_topic(self, counts: ReaderCounts) -> dict[str, dict[str, Any]]:
        """The same by topic, with its counts. From any thread."""
        flows = {} if self._running is None else self._running.flow.topics
        by_topic: dict[str, dict[str, Any]] = {}
        for topic, own_counts in list(counts.by_topic.items()):
            flow = flows.get(topic)
            level = 0 if flow is None else flow.backoff.level
            by_topic[topic] = {**asdict(own_counts), "in_flight": 0, "backoff_level": level, "connections": 0}
        for subscription in self:
            if (found := by_topic.get(subscription.topic)) is not None:
                found["in_flight"] += subscription.charge.in_flight
                found["connections"] += 1
        return by_topic

    def stats(self, with_topic: bool) -> dict[str, dict[str, Any]]:
        """For ``Reader.stats``. From any thread."""
        return {
            f"{target.address}/{target.topic}" if with_topic else str(target.address): subscription.stats()
            for target, subscription in list(self._table.items())
        }
