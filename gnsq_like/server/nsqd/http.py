"""nsqd's HTTP API for publishing, and for managing topics and channels (docs/internals 3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Protocol

from gnsq_like.httpd.wsgi import (
    Answer,
    Function,
    HTTPProblem,
    Request,
    Routes,
    TakesBody,
    argument,
)
from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.nsqd.publishing import publish
from gnsq_like.server.shared.loop_share import Turn
from gnsq_like.server.shared.parameters import topic_and_channel_names
from gnsq_like.server.shared.requests import LEAST_MPUB_ENTRY, BadBodySize, Requests
from gnsq_like.server.storage.disk_queue import DiskError
from gnsq_like.wire.names import is_valid_name

#: Values of /mpub that mean "not binary"; anything else is binary, even an empty value.
_NOT_BINARY = frozenset({"false", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]+")


class Managed(Protocol):
    """The members of an nsqd that are used here."""

    broker: Broker
    clock: Callable[[], float]
    options: NsqdOptions

    def delete_topic(self, topic: Topic) -> None: ...
    def delete_channel(self, topic: Topic, channel: Channel) -> None: ...
    def set_topic_paused(self, topic: Topic, paused: bool) -> None: ...
    def set_channel_paused(self, channel: Channel, paused: bool) -> None: ...


def routes(nsqd: Managed) -> Routes:
    """This part of the table of nsqd's HTTP API."""
    api = _API(nsqd)
    functions: dict[str, Function | TakesBody] = {
        "/pub": TakesBody(api.pub),
        "/mpub": TakesBody(api.mpub),
        # Their names in older documents.
        "/put": TakesBody(api.pub),
        "/mput": TakesBody(api.mpub),
        "/topic/create": api.create_topic,
        "/topic/delete": api.delete_topic,
        "/topic/empty": api.empty_topic,
        "/topic/pause": partial(api.set_topic_paused, paused=True),
        "/topic/unpause": partial(api.set_topic_paused, paused=False),
        "/channel/create": api.create_channel,
        "/channel/delete": api.delete_channel,
        "/channel/empty": api.empty_channel,
        "/channel/pause": partial(api.set_channel_paused, paused=True),
        "/channel/unpause": partial(api.set_channel_paused, paused=False),
    }
    return {path: {"POST": function} for path, function in functions.items()}


class _API:
    """The functions of the table."""

    def __init__(self, nsqd: Managed) -> None:
        self._nsqd = nsqd
        self._options = nsqd.options

    # -- publishing ----------------------------------------------------------------------------------

    def pub(self, request: Request) -> Answer:
        limit = self._options.max_msg_size
        if (request.content_length or 0) > limit:
            raise HTTPProblem(413, "MSG_TOO_BIG")
        body = request.read_body(limit + 1)
        if len(body) > limit:
            raise HTTPProblem(413, "MSG_TOO_BIG")
        if not body:
            raise HTTPProblem(400, "MSG_EMPTY")
        parameters = request.parameters()
        topic = self._nsqd.broker.topic(_publish_name(parameters))
        self._publish(topic, [body], self._defer(parameters))
        return "OK"

    def mpub(self, request: Request) -> Answer:
        limit = self._options.max_body_size
        if (request.content_length or 0) > limit:
            raise HTTPProblem(413, "BODY_TOO_BIG")
        parameters = request.parameters()
        name = _publish_name(parameters)
        body = request.read_body(limit + 1)
        if len(body) > limit:
            raise HTTPProblem(413, "BODY_TOO_BIG")
        topic = self._nsqd.broker.topic(name)
        if "binary" in parameters and parameters["binary"] not in _NOT_BINARY:
            bodies = self._binary_bodies(body)
        else:
            bodies = self._lines(body)
        self._publish(topic, bodies, 0.0)
        return "OK"

    def _publish(self, topic: Topic, bodies: list[bytes], defer: float) -> None:
        try:
            publish(self._nsqd.broker, topic, bodies, self._nsqd.clock, Turn().share, defer)
        except DiskError:
            raise HTTPProblem(503, "EXITING") from None  # the error that nsqd gives

    def _defer(self, parameters: dict[str, str]) -> float:
        """Seconds, from ``defer`` in ms."""
        text = parameters.get("defer")
        if text is None:
            return 0.0
        if not _INTEGER.fullmatch(text):
            raise HTTPProblem(400, "INVALID_DEFER")
        seconds = int(text) / 1000
        if not 0 <= seconds <= self._options.max_req_timeout:
            raise HTTPProblem(400, "INVALID_DEFER")
        return seconds

    def _lines(self, body: bytes) -> list[bytes]:
        """One message per line; a CR is part of it."""
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in lines):
            raise HTTPProblem(413, "MSG_TOO_BIG")
        return lines

    def _binary_bodies(self, body: bytes) -> list[bytes]:
        """The body of an MPUB from its count on."""
        requests = Requests()
        requests.feed(body)
        count = requests.take_int32()
        if count is None or not 0 < count <= (self._options.max_body_size - 4) // LEAST_MPUB_ENTRY:
            raise HTTPProblem(413, "BAD_BODY")
        bodies: list[bytes] = []
        try:
            whole = requests.take_bodies(bodies, count, self._options.max_msg_size)
        except BadBodySize:
            raise HTTPProblem(413, "BAD_MESSAGE") from None
        if not whole:
            raise HTTPProblem(413, "BAD_MESSAGE")
        return bodies

    # -- topics --------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Answer:
        self._nsqd.broker.topic(_publish_name(request.parameters()))
        return None

    def delete_topic(self, request: Request) -> Answer:
        self._nsqd.delete_topic(self._existing_topic(argument(request.parameters(), "topic")))
        return None

    def empty_topic(self, request: Request) -> Answer:
        name = argument(request.parameters(), "topic")
        if not is_valid_name(name):
            raise HTTPProblem(400, "INVALID_TOPIC")
        self._existing_topic(name).empty()
        return None

    def set_topic_paused(self, request: Request, paused: bool) -> Answer:
        topic = self._existing_topic(argument(request.parameters(), "topic"))
        self._nsqd.set_topic_paused(topic, paused)
        return None

    def _existing_topic(self, name: str) -> Topic:
        topic = self._nsqd.broker.topics.get(name)
        if topic is None:
            raise HTTPProblem(404, "TOPIC_NOT_FOUND")
        return topic

    # -- channels ------------------------------------------------------------------------------------

    def create_channel(self, request: Request) -> Answer:
        topic, name = self._topic_and_channel_name(request)
        self._nsqd.broker.channel(topic, name, self._nsqd.clock())
        return None

    def delete_channel(self, request: Request) -> Answer:
        self._nsqd.delete_channel(*self._topic_and_channel(request))
        return None

    def empty_channel(self, request: Request) -> Answer:
        self._topic_and_channel(request)[1].empty()
        return None

    def set_channel_paused(self, request: Request, paused: bool) -> Answer:
        self._nsqd.set_channel_paused(self._topic_and_channel(request)[1], paused)
        return None

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic, channel = topic_and_channel_names(request)
        return self._existing_topic(topic), channel

    def _topic_and_channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, name = self._topic_and_channel_name(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HTTPProblem(404, "CHANNEL_NOT_FOUND")
        return topic, channel


def _publish_name(parameters: dict[str, str]) -> str:
    """The topic's name where the topic is made if there is none."""
    name = argument(parameters, "topic")
    if not is_valid_name(name):
        raise HTTPProblem(400, "INVALID_TOPIC")
    return name
