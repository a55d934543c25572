"""nsqd's HTTP face (docs/internals 3): publishing, managing topics and channels, information."""

from __future__ import annotations

import gc
import re
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any

from gevent.util import format_run_info

from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.nsqd import config
from gnsq_like.server.nsqd.stats import as_text, stats
from gnsq_like.server.options import VERSION
from gnsq_like.server.shared.listen import port_of
from gnsq_like.server.shared.requests import BadBodySize, Requests
from gnsq_like.server.shared.wsgi import (
    JSON,
    NSQ_HEADER,
    Answer,
    Problem,
    Request,
    Routes,
    argument,
    topic_and_channel_names,
)
from gnsq_like.server.storage.disk_queue import DiskError
from gnsq_like.wire.names import is_valid_name

if TYPE_CHECKING:
    from gnsq_like.server.nsqd.nsqd import Nsqd

#: What /stats understands; anything else is true.
_FALSE = frozenset({"false", "0"})
#: What /mpub takes for "not binary"; anything else is binary, also nothing at all.
_NOT_BINARY = frozenset({"false", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]+")


def routes(nsqd: Nsqd) -> Routes:
    """The table of nsqd's HTTP face."""
    face = _Face(nsqd)
    get = {
        "/ping": face.ping,
        "/info": face.info,
        "/stats": face.stats,
        "/debug/pprof/cmdline": face.command_line,
        "/debug/pprof/goroutine": face.greenlets,
    }
    post = {
        "/pub": face.pub,
        "/mpub": face.mpub,
        "/debug/freememory": face.free_memory,
        # What older documents call them.
        "/put": face.pub,
        "/mput": face.mpub,
        "/topic/create": face.create_topic,
        "/topic/delete": face.delete_topic,
        "/topic/empty": face.empty_topic,
        "/topic/pause": face.pause_topic,
        "/topic/unpause": face.unpause_topic,
        "/channel/create": face.create_channel,
        "/channel/delete": face.delete_channel,
        "/channel/empty": face.empty_channel,
        "/channel/pause": face.pause_channel,
        "/channel/unpause": face.unpause_channel,
    }
    table: dict[str, Any] = {path: {"GET": function} for path, function in get.items()}
    table |= {path: {"POST": function} for path, function in post.items()}
    table["/config/"] = {"GET": face.option, "PUT": face.set_option}
    return table


class TlsRequired:
    """The HTTP face where TLS is required: it says where to ask instead, whatever is asked."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        address = self._nsqd.https_address
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % (port_of(address) if address else 0)
        headers = [("Content-Type", JSON), NSQ_HEADER, ("Content-Length", str(len(body)))]
        start_response("403 Forbidden", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


class _Face:
    """The functions of the table."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._options = nsqd.options

    # -- information ---------------------------------------------------------------------------------

    def ping(self, request: Request) -> Answer:
        health = self._nsqd.health
        if health != "OK":
            raise Problem(500, health, plain=True)
        return health

    def info(self, request: Request) -> Answer:
        nsqd, options = self._nsqd, self._options
        return {
            "version": VERSION,
            "broadcast_address": nsqd.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": port_of(nsqd.http_address),
            "tcp_port": port_of(nsqd.tcp_address),
            "start_time": nsqd.start_time,
            "max_heartbeat_interval": _nanoseconds(options.max_heartbeat_interval),
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": _nanoseconds(options.max_output_buffer_timeout),
            "max_deflate_level": options.max_deflate_level,
        }

    def stats(self, request: Request) -> Answer:
        parameters = request.parameters()
        figures = stats(
            self._nsqd,
            parameters.get("topic", ""),
            parameters.get("channel", ""),
            parameters.get("include_clients") not in _FALSE,
            parameters.get("include_mem") not in _FALSE,
        )
        if parameters.get("format") == "json":
            return figures
        return as_text(figures, self._nsqd.start_time)

    # -- options, and a look inside ------------------------------------------------------------------

    def option(self, request: Request) -> Answer:
        return config.option(self._nsqd, request.last_word)

    def set_option(self, request: Request) -> Answer:
        body = request.read_body(self._options.max_msg_size + 1)
        return config.set_option(self._nsqd, request.last_word, body)

    def command_line(self, request: Request) -> Answer:
        return "\0".join(sys.argv)

    def greenlets(self, request: Request) -> Answer:
        return "\n".join(format_run_info())

    def free_memory(self, request: Request) -> Answer:
        gc.collect()
        return None

    # -- publishing ----------------------------------------------------------------------------------

    def pub(self, request: Request) -> Answer:
        limit = self._options.max_msg_size
        if (request.content_length or 0) > limit:
            raise Problem(413, "MSG_TOO_BIG")
        body = request.read_body(limit + 1)
        if len(body) > limit:
            raise Problem(413, "MSG_TOO_BIG")
        if not body:
            raise Problem(400, "MSG_EMPTY")
        parameters = request.parameters()
        topic = self._publish_topic(parameters)
        self._publish(topic, [body], self._defer(parameters))
        return "OK"

    def mpub(self, request: Request) -> Answer:
        limit = self._options.max_body_size
        if (request.content_length or 0) > limit:
            raise Problem(413, "BODY_TOO_BIG")
        parameters = request.parameters()
        topic = self._publish_topic(parameters)
        body = request.read_body(limit + 1)
        if "binary" in parameters and parameters["binary"] not in _NOT_BINARY:
            bodies = self._binary_bodies(body)
        else:
            bodies = self._lines(body)
        self._publish(topic, bodies, 0.0)
        return "OK"

    def _publish(self, topic: Topic, bodies: list[bytes], defer: float) -> None:
        try:
            topic.publish(bodies, defer, self._nsqd.clock(), time_ns())
        except DiskError:
            raise Problem(503, "EXITING") from None  # nsqd has no other word for it

    def _publish_topic(self, parameters: dict[str, str]) -> Topic:
        name = argument(parameters, "topic")
        if not is_valid_name(name):
            raise Problem(400, "INVALID_TOPIC")
        return self._nsqd.broker.topic(name)

    def _defer(self, parameters: dict[str, str]) -> float:
        """Seconds, from ``defer`` in ms."""
        text = parameters.get("defer")
        if text is None:
            return 0.0
        if not _INTEGER.fullmatch(text):
            raise Problem(400, "INVALID_DEFER")
        seconds = int(text) / 1000
        if not 0 <= seconds <= self._options.max_req_timeout:
            raise Problem(400, "INVALID_DEFER")
        return seconds

    def _lines(self, body: bytes) -> list[bytes]:
        """One message a line; a CR stays part of it."""
        if len(body) > self._options.max_body_size:
            raise Problem(413, "BODY_TOO_BIG")
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in lines):
            raise Problem(413, "MSG_TOO_BIG")
        return lines

    def _binary_bodies(self, body: bytes) -> list[bytes]:
        """The body of an MPUB from its count on."""
        requests = Requests()
        requests.feed(body)
        count = requests.take_int32()
        if count is None or not 0 < count <= (self._options.max_body_size - 4) // 5:
            raise Problem(413, "BAD_BODY")
        bodies: list[bytes] = []
        try:
            whole = requests.take_bodies(bodies, count, self._options.max_msg_size)
        except BadBodySize:
            raise Problem(413, "BAD_MESSAGE") from None
        if not whole:
            raise Problem(413, "BAD_MESSAGE")
        return bodies

    # -- topics --------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Answer:
        self._publish_topic(request.parameters())
        return None

    def delete_topic(self, request: Request) -> Answer:
        self._nsqd.delete_topic(self._existing_topic(argument(request.parameters(), "topic")))
        return None

    def empty_topic(self, request: Request) -> Answer:
        name = argument(request.parameters(), "topic")
        if not is_valid_name(name):
            raise Problem(400, "INVALID_TOPIC")
        self._existing_topic(name).empty()
        return None

    def pause_topic(self, request: Request) -> Answer:
        return self._set_topic_paused(request, True)

    def unpause_topic(self, request: Request) -> Answer:
        return self._set_topic_paused(request, False)

    def _set_topic_paused(self, request: Request, paused: bool) -> Answer:
        topic = self._existing_topic(argument(request.parameters(), "topic"))
        self._nsqd.set_topic_paused(topic, paused)
        return None

    def _existing_topic(self, name: str) -> Topic:
        topic = self._nsqd.broker.topics.get(name)
        if topic is None:
            raise Problem(404, "TOPIC_NOT_FOUND")
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

    def pause_channel(self, request: Request) -> Answer:
        self._nsqd.set_channel_paused(self._topic_and_channel(request)[1], True)
        return None

    def unpause_channel(self, request: Request) -> Answer:
        self._nsqd.set_channel_paused(self._topic_and_channel(request)[1], False)
        return None

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic, channel = topic_and_channel_names(request)
        return self._existing_topic(topic), channel

    def _topic_and_channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, name = self._topic_and_channel_name(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise Problem(404, "CHANNEL_NOT_FOUND")
        return topic, channel


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
