"""nsqlookupd's database: which nsqd has which topics and channels (docs/internals 4.2). No I/O; ``now`` is passed in.

Topics and channels are keys, each with its producers. A producer is one TCP connection of an nsqd, and is in
the tables as long as the connection lasts. Keys outlive their producers, except ephemeral ones, which end with the last
of them. (In NSQ's nsqlookupd, those of a killed nsqd stay.) Only responses are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnsq_like.wire.names import is_ephemeral


@dataclass(eq=False)
class Producer:
    """An nsqd, as it identified itself on one connection."""

    #: "ip:port" of its end of the connection, which identifies it.
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str
    #: When it last sent something, by the registry's clock.
    last_update: float

    @property
    def node(self) -> str:
        """Its name in a tombstone."""
        return f"{self.broadcast_address}:{self.http_port}"


class Registration:
    """A producer under one key; a tombstone belongs to this, not to the producer."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        #: When it was tombstoned.
        self.tombstoned_at: float | None = None

    def is_tombstoned(self, now: float, lifetime: float) -> bool:
        """Whether a tombstone hides it."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


#: Producers of one key, by their remote address.
Registrations = dict[str, Registration]


class Registry:
    """Topics and channels with their producers.

    :param inactive_timeout: seconds of silence after which a producer is hidden
    :param tombstone_lifetime: seconds for which a tombstone hides a producer of a topic
    """

    def __init__(self, inactive_timeout: float, tombstone_lifetime: float) -> None:
        self._inactive_timeout = inactive_timeout
        self._tombstone_lifetime = tombstone_lifetime
        #: All nsqds that are connected and have identified themselves.
        self.producers: Registrations = {}
        self.topics: dict[str, Registrations] = {}
        self.channels: dict[tuple[str, str], Registrations] = {}

    # -- commands of nsqds ---------------------------------------------------------------------------

    def connect(self, producer: Producer) -> None:
        """IDENTIFY."""
        self.producers[producer.remote_address] = Registration(producer)

    def disconnect(self, producer: Producer) -> None:
        """Its connection is gone: remove it from every key, and ephemeral keys of which it was the last producer."""
        address = producer.remote_address
        self.producers.pop(address, None)
        for topic, registrations in list(self.topics.items()):
            if registrations.pop(address, None) and not registrations and is_ephemeral(topic):
                del self.topics[topic]
        for (topic, channel), registrations in list(self.channels.items()):
            was_last = registrations.pop(address, None) and not registrations
            if was_last and (is_ephemeral(channel) or (is_ephemeral(topic) and topic not in self.topics)):
                del self.channels[topic, channel]

    def register(self, producer: Producer, topic: str, channel: str | None) -> None:
        """REGISTER: a channel's producer is also its topic's. A repeated one changes nothing; a tombstone stays."""
        new = Registration(producer)
        if channel is not None:
            self.channels.setdefault((topic, channel), {}).setdefault(producer.remote_address, new)
            new = Registration(producer)
        self.topics.setdefault(topic, {}).setdefault(producer.remote_address, new)

    def unregister(self, producer: Producer, topic: str, channel: str | None) -> None:
        """UNREGISTER: from this channel, or from the topic and all its channels.

        The named key is removed if it is ephemeral and now empty.
        """
        address = producer.remote_address
        if channel is not None:
            registrations = self.channels.get((topic, channel), {})
            registrations.pop(address, None)
            if not registrations and is_ephemeral(channel):
                self.channels.pop((topic, channel), None)
            return
        for key, registrations in self.channels.items():
            if key[0] == topic:
                registrations.pop(address, None)
        registrations = self.topics.get(topic, {})
        registrations.pop(address, None)
        if not registrations and is_ephemeral(topic):
            self.topics.pop(topic, None)

    # -- commands of administrators ------------------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        """Create a topic without producers, if it does not exist."""
        self.topics.setdefault(topic, {})

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel without producers, and its topic, if they do not exist."""
        self.channels.setdefault((topic, channel), {})
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its channels, with all their producers."""
        self.topics.pop(topic, None)
        for key in [key for key in self.channels if key[0] == topic]:
            del self.channels[key]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel with all its producers; False if it does not exist."""
        return self.channels.pop((topic, channel), None) is not None

    def tombstone(self, topic: str, node: str, now: float) -> None:
        """Hide a producer of a topic for a while.

        :param node: its broadcast address and HTTP port
        """
        for registration in self.topics.get(topic, {}).values():
            if registration.producer.node == node:
                registration.tombstoned_at = now

    # -- queries -------------------------------------------------------------------------------------

    def channels_of(self, topic: str) -> list[str]:
        """The channels of a topic."""
        return sorted(channel for of_topic, channel in self.channels if of_topic == topic)

    def topics_of(self, producer: Producer) -> list[str]:
        """The topics that a producer has."""
        return sorted(topic for topic, registrations in self.topics.items() if producer.remote_address in registrations)

    def lookup(self, topic: str, now: float) -> list[Producer] | None:
        """A topic's producers, without those that are inactive or tombstoned; None if there is no such topic."""
        registrations = self.topics.get(topic)
        if registrations is None:
            return None
        return [
            registration.producer
            for registration in registrations.values()
            if self._is_active(registration.producer, now)
            and not registration.is_tombstoned(now, self._tombstone_lifetime)
        ]

    def nodes(self, now: float) -> list[Producer]:
        """All nsqds that are active, tombstoned or not."""
        active = [r.producer for r in self.producers.values() if self._is_active(r.producer, now)]
        return sorted(active, key=lambda producer: (producer.hostname, producer.remote_address))

    def is_tombstoned(self, producer: Producer, topic: str, now: float) -> bool:
        """Whether a tombstone hides a producer of a topic."""
        registration = self.topics.get(topic, {}).get(producer.remote_address)
        return registration is not None and registration.is_tombstoned(now, self._tombstone_lifetime)

    def _is_active(self, producer: Producer, now: float) -> bool:
        return now - producer.last_update <= self._inactive_timeout
