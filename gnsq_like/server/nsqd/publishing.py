"""Publishes of many messages, in portions, so that other clients are not kept waiting.

A portion is accepted as a whole or not at all. If a later one is refused, those before stay accepted, as in NSQ's nsqd.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.storage.disk_queue import DiskError

#: Messages of a portion: some milliseconds of work.
PORTION = 500


def publish(
    broker: Broker,
    topic: Topic,
    bodies: list[bytes],
    clock: Callable[[], float],
    pause: Callable[[], None],
    defer: float = 0.0,
) -> None:
    """Publish to a topic. May switch between two portions.

    :param bodies: emptied on the way
    :param pause: lets other greenlets run, if it is time
    :param defer: seconds for which each channel defers the messages
    :raises DiskError: if they must go to disk and cannot, or the topic was deleted meanwhile
    """
    if len(bodies) <= PORTION:
        topic.publish(bodies, defer, clock(), time.time_ns())
        return
    topic.publish(bodies[:PORTION], defer, clock(), time.time_ns())
    for start in range(PORTION, len(bodies), PORTION):
        bodies[start - PORTION : start] = [b""] * PORTION  # freeing a million at the end would take long, too
        pause()
        if broker.topics.get(topic.name) is not topic:
            raise DiskError("exiting")  # as in NSQ's nsqd
        topic.publish(bodies[start : start + PORTION], defer, clock(), time.time_ns())
