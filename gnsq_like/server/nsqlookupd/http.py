"""nsqlookupd's HTTP API (docs/internals 4.3)."""

from __future__ import annotations

from collections.abc import Callable

from gnsq_like.httpd.wsgi import Answer, HTTPProblem, Request, Routes, argument
from gnsq_like.server.daemon_options import VERSION
from gnsq_like.server.nsqlookupd.registry import Producer, Registrations, Registry
from gnsq_like.server.shared.parameters import topic_and_channel_names
from gnsq_like.wire.names import is_valid_name


def routes(registry: Registry, clock: Callable[[], float]) -> Routes:
    """The table of nsqlookupd's HTTP API.

    :param clock: Unix seconds
    """
    api = _API(registry, clock)
    return {
        "/ping": {"GET": api.ping},
        "/info": {"GET": api.info},
        "/debug": {"GET": api.debug},
        "/lookup": {"GET": api.lookup},
        "/topics": {"GET": api.topics},
        "/channels": {"GET": api.channels},
        "/nodes": {"GET": api.nodes},
        "/topic/create": {"POST": api.create_topic},
        "/topic/delete": {"POST": api.delete_topic},
        "/topic/tombstone": {"POST": api.tombstone_topic},
        "/channel/create": {"POST": api.create_channel},
        "/channel/delete": {"POST": api.delete_channel},
    }


class _API:
    """The functions of the table."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock

    def ping(self, request: Request) -> Answer:
        return "OK"

    def info(self, request: Request) -> Answer:
        return {"version": VERSION}

    def topics(self, request: Request) -> Answer:
        return {"topics": sorted(self._registry.topics)}

    def channels(self, request: Request) -> Answer:
        return {"channels": self._registry.channels_of(argument(request.parameters(), "topic"))}

    def lookup(self, request: Request) -> Answer:
        topic = argument(request.parameters(), "topic")
        producers = self._registry.lookup(topic, self._clock())
        if producers is None:
            raise HTTPProblem(404, "TOPIC_NOT_FOUND")
        return {
            "channels": self._registry.channels_of(topic),
            "producers": [_producer(producer) for producer in producers],
        }

    def nodes(self, request: Request) -> Answer:
        now = self._clock()
        return {"producers": [self._node(producer, now) for producer in self._registry.nodes(now)]}

    def _node(self, producer: Producer, now: float) -> dict[str, object]:
        topics = self._registry.topics_of(producer)
        tombstones = [self._registry.is_tombstoned(producer, topic, now) for topic in topics]
        return _producer(producer) | {"tombstones": tombstones, "topics": topics}

    def create_topic(self, request: Request) -> Answer:
        topic = argument(request.parameters(), "topic")
        if not is_valid_name(topic):
            raise HTTPProblem(400, "INVALID_ARG_TOPIC")
        self._registry.create_topic(topic)
        return None

    def delete_topic(self, request: Request) -> Answer:
        self._registry.delete_topic(argument(request.parameters(), "topic"))
        return None

    def tombstone_topic(self, request: Request) -> Answer:
        parameters = request.parameters()
        self._registry.tombstone(argument(parameters, "topic"), argument(parameters, "node"), self._clock())
        return None

    def create_channel(self, request: Request) -> Answer:
        self._registry.create_channel(*topic_and_channel_names(request))
        return None

    def delete_channel(self, request: Request) -> Answer:
        if not self._registry.delete_channel(*topic_and_channel_names(request)):
            raise HTTPProblem(404, "CHANNEL_NOT_FOUND")
        return None

    def debug(self, request: Request) -> Answer:
        registry = self._registry
        keys: dict[str, Registrations] = {"client::": registry.producers}
        keys |= {f"topic:{topic}:": found for topic, found in registry.topics.items()}
        keys |= {f"channel:{topic}:{channel}": found for (topic, channel), found in registry.channels.items()}
        return {
            key: [
                {
                    "id": registration.producer.remote_address,
                    **_facts(registration.producer),
                    "last_update": round(registration.producer.last_update * 1e9),
                    "tombstoned": registration.tombstoned_at is not None,
                    "tombstoned_at": round((registration.tombstoned_at or 0) * 1e9),
                }
                for registration in registrations.values()
            ]
            for key, registrations in keys.items()
            if registrations
        }


def _producer(producer: Producer) -> dict[str, object]:
    return {"remote_address": producer.remote_address, **_facts(producer)}


def _facts(producer: Producer) -> dict[str, object]:
    return {
        "hostname": producer.hostname,
        "broadcast_address": producer.broadcast_address,
        "tcp_port": producer.tcp_port,
        "http_port": producer.http_port,
        "version": producer.version,
        "topology_zone": producer.topology_zone,
        "topology_region": producer.topology_region,
    }
