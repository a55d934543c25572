"""Topics over HTTP, for programs that speak nothing else, as NSQ's nsq_pubsub did: ``gnsq-like pubsub``.

- ``GET /sub?topic=T&channel=C``: the messages as they come, a line each; with ``Accept: text/event-stream`` or
  ``format=sse`` as server-sent events, of type ``base64`` if they are not text. Each request is a consumer of its
  own, until its client goes away
- ``POST /pub?topic=T``: publishes the body; ``defer=`` milliseconds
- ``GET /stats``: who is connected, as text, or with ``format=json`` as JSON
- ``GET /ping``: OK

Every web page that the user visits can make requests to a loopback address, and each one to /sub takes messages. So
requests from pages of another origin are refused, and on a loopback address those whose Host is the name of another
machine, which may have been made to point here.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gevent
from gevent.event import Event
from gevent.pool import Pool
from gevent.queue import Empty, Queue
from gevent.socket import wait_read

from gnsq_like import Message, Producer
from gnsq_like.addresses import parse_address
from gnsq_like.errors import NSQError, PublishError, PublishRefused, UsageError
from gnsq_like.runtime.native import monotonic
from gnsq_like.server.shared.http_connections import HTTPConnections
from gnsq_like.server.shared.http_server import SOCKET, HTTPServer
from gnsq_like.server.shared.listen import bound_address, listen
from gnsq_like.tools.consuming import Consumption, give_back
from gnsq_like.tools.sources import Source
from gnsq_like.wire.names import is_valid_name

logger = logging.getLogger(__name__)

#: Seconds between two signs of life on a stream without messages.
HEARTBEAT_SECONDS = 30.0
#: The largest body of a POST; nsqd's own limit is 1 MiB unless its flags change that.
_MAX_BODY_BYTES = 16 * 1024 * 1024
#: Clients at once; further ones wait.
_MOST_CLIENTS = 10_000
#: Seconds for responses that are being written when the server stops.
_STOP_TIMEOUT = 5.0
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|\[::1\]")

_StartResponse = Callable[[str, list[tuple[str, str]]], Callable[[bytes], object]]
_Environ = Mapping[str, Any]


class _Problem(Exception):
    """A request that gets an error: status line, and a word or sentence."""


@dataclass(eq=False)
class _Client:
    """A stream."""

    topic: str
    channel: str
    address: str
    began: float = field(default_factory=monotonic)
    sent: int = 0


class PubSub:
    """The WSGI application.

    :param source: the nsqds to read from and to publish to
    :param stop: set to end all streams
    :param origins: of web pages that may make requests, such as "https://app.example.com"
    :param loopback_only: whether requests must be for a loopback address
    :param heartbeat: seconds between signs of life
    """

    def __init__(
        self,
        source: Source,
        *,
        stop: Event,
        producer_options: Mapping[str, Any] | None = None,
        origins: Sequence[str] = (),
        loopback_only: bool = True,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._source = source
        self._stop = stop
        self._origins = frozenset(origins)
        self._loopback_only = loopback_only
        self._heartbeat = heartbeat
        self._clients: set[_Client] = set()
        self._sent = 0
        #: Greenlets that stop the Readers of ended streams.
        self._endings: set[gevent.Greenlet] = set()
        self._producer = Producer(
            source.nsqd_tcp_addresses,
            lookupd_http_addresses=source.lookupd_http_addresses,
            **{"own_thread": False, "batching": True, **(producer_options or {})},
        )

    def close(self) -> None:
        """After the last request. May switch."""
        gevent.joinall(list(self._endings))
        self._producer.close()

    def __call__(self, environ: _Environ, start_response: _StartResponse) -> Iterator[bytes] | list[bytes]:
        try:
            self._check_caller(environ)
            return self._answer(environ, start_response)
        except _Problem as exc:
            status, text = exc.args
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [str(text).encode()]

    def _answer(self, environ: _Environ, start_response: _StartResponse) -> Iterator[bytes] | list[bytes]:
        path = environ["PATH_INFO"]
        methods = {"/sub": "GET", "/pub": "POST", "/stats": "GET", "/ping": "GET"}
        if path not in methods:
            raise _Problem("404 Not Found", "NOT_FOUND")
        if environ["REQUEST_METHOD"] != methods[path]:
            raise _Problem("405 Method Not Allowed", "METHOD_NOT_ALLOWED")
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"], keep_blank_values=True).items()}
        if path == "/sub":
            return self._subscribe(environ, query, start_response)
        kind, body = "text/plain; charset=utf-8", "OK"
        if path == "/pub":
            self._publish(environ, query)
        elif path == "/stats":
            kind, body = self._stats(query.get("format") == "json")
        start_response("200 OK", [("Content-Type", kind)])
        return [body.encode()]

    def _check_caller(self, environ: _Environ) -> None:
        host = environ.get("HTTP_HOST", "")
        origin = environ.get("HTTP_ORIGIN")
        own = origin is not None and urlsplit(origin).netloc == host
        if origin is not None and not own and origin not in self._origins:
            raise _Problem("403 Forbidden", f"FORBIDDEN_ORIGIN {origin}")
        if origin is None and environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
            raise _Problem("403 Forbidden", "FORBIDDEN_SITE")
        if self._loopback_only and host and not _LOOPBACK.fullmatch(re.sub(r":\d+$", "", host)):
            raise _Problem("403 Forbidden", f"FORBIDDEN_HOST {host}")

    # -- publishing ---------------------------------------------------------------------------------

    def _publish(self, environ: _Environ, query: Mapping[str, str]) -> None:
        topic = _name(query, "topic")
        defer = query.get("defer", "0")
        if not (defer.isascii() and defer.isdigit()):
            raise _Problem("400 Bad Request", "INVALID_ARG_DEFER")
        try:
            self._producer.publish(topic, environ["wsgi.input"].read(), defer=int(defer) / 1000 or None)
        except (UsageError, PublishRefused) as exc:
            raise _Problem("400 Bad Request", exc) from exc
        except PublishError as exc:
            raise _Problem("503 Service Unavailable", exc) from exc

    # -- subscribing --------------------------------------------------------------------------------

    def _subscribe(
        self, environ: _Environ, query: Mapping[str, str], start_response: _StartResponse
    ) -> Iterator[bytes]:
        topic, channel = _name(query, "topic"), _name(query, "channel")
        as_events = query.get("format") == "sse" or "text/event-stream" in environ.get("HTTP_ACCEPT", "")
        gone = Event()
        messages: Queue[Message | None] = Queue()
        consumption = Consumption(self._source, gone)

        def take(message: Message) -> None:
            message.enable_async()
            messages.put(message)

        consumption.add(topic, channel, take)
        try:
            self._wait_for_connection(consumption, gone)
        except NSQError as exc:
            consumption.end()
            raise _Problem("503 Service Unavailable", exc) from exc
        except BaseException:
            consumption.end()
            raise
        kind = "text/event-stream" if as_events else "text/plain; charset=utf-8"
        headers = [("Content-Type", kind), ("Cache-Control", "no-store"), ("Connection", "close")]
        start_response("200 OK", headers)(b"")  # now, and not with the first message
        client = _Client(topic, channel, f"{environ['REMOTE_ADDR']}:{environ['REMOTE_PORT']}")
        return self._stream(client, environ[SOCKET], messages, consumption, gone, _event if as_events else _line)

    def _wait_for_connection(self, consumption: Consumption, gone: Event) -> None:
        if self._source.nsqd_tcp_addresses:
            gevent.wait([consumption.connected, gone, self._stop], count=1)
            consumption.check()

    def _stream(
        self,
        client: _Client,
        sock: Any,
        messages: Queue[Message | None],
        consumption: Consumption,
        gone: Event,
        to_bytes: Callable[[Message], bytes],
    ) -> Iterator[bytes]:
        """Messages as bytes; each is finished when the next is asked for, because then it has been written."""

        def end(_: object) -> None:
            gone.set()
            messages.put(None)

        # Whatever the client still sends, or its end, ends the stream.
        watching = gevent.spawn(_wait_until_readable, sock)
        watching.link(end)
        self._stop.rawlink(end)
        gone.rawlink(lambda _: messages.put(None))
        self._clients.add(client)
        message: Message | None = None
        try:
            while not gone.is_set():
                try:
                    message = messages.get(timeout=self._heartbeat)
                except Empty:
                    yield _heartbeat(to_bytes)
                    continue
                if message is None or gone.is_set():
                    continue
                yield to_bytes(message)
                message.finish()
                client.sent += 1
                self._sent += 1
        finally:
            if message is not None:
                give_back([message])
            self._clients.discard(client)
            self._stop.unlink(end)
            watching.unlink(end)
            watching.kill(block=False)
            ending = gevent.spawn(_end, consumption, messages)
            self._endings.add(ending)
            ending.link(self._endings.discard)

    # -- statistics ---------------------------------------------------------------------------------

    def _stats(self, as_json: bool) -> tuple[str, str]:
        now = time.monotonic()
        clients = sorted(self._clients, key=lambda each: each.began)
        if as_json:
            found = [
                {
                    "address": each.address,
                    "topic": each.topic,
                    "channel": each.channel,
                    "messages": each.sent,
                    "seconds": round(now - each.began, 3),
                }
                for each in clients
            ]
            return "application/json", json.dumps({"messages": self._sent, "clients": found})
        lines = [f"Total Messages: {self._sent}", ""]
        lines += [
            f"[{each.address}] [{each.topic} : {each.channel}] connected: {int(now - each.began)}s" for each in clients
        ]
        return "text/plain; charset=utf-8", "\n".join(lines) + "\n"


def _name(query: Mapping[str, str], kind: str) -> str:
    """The topic or channel of a request."""
    name = query.get(kind, "")
    if not is_valid_name(name):
        raise _Problem("400 Bad Request", f"{'INVALID' if name else 'MISSING'}_ARG_{kind.upper()}")
    return name


def _line(message: Message) -> bytes:
    return message.body + b"\n"


def _event(message: Message) -> bytes:
    """A server-sent event: id, and the body, line by line, as UTF-8.

    A client joins lines by "\\n", and decodes them. A body that would not come out as it went in is sent in base64, as
    an event of that type.
    """
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = "\r"
    fields = [f"id: {message.id}"]
    if "\r" in text:
        fields += ["event: base64", f"data: {base64.b64encode(message.body).decode()}"]
    else:
        fields += [f"data: {line}" for line in text.split("\n")]
    return "\n".join([*fields, "", ""]).encode()


def _heartbeat(to_bytes: Callable[[Message], bytes]) -> bytes:
    return b'{"_heartbeat_":%d}\n' % time.time() if to_bytes is _line else b": heartbeat\n\n"


def _wait_until_readable(sock: Any) -> None:
    with suppress(OSError):
        wait_read(sock.fileno())


def _end(consumption: Consumption, messages: Queue[Message | None]) -> None:
    """Stop a stream's Reader, and give back what was not sent."""
    ending = gevent.spawn(consumption.end)
    gevent.sleep(0)
    while True:
        with suppress(Empty):
            while True:
                message = messages.get_nowait()
                if message is not None:
                    give_back([message])
        if ending.ready():
            return
        gevent.wait([ending], timeout=0.05)


def serve(
    source: Source,
    address: str = "127.0.0.1:8080",
    *,
    stop: Event,
    producer_options: Mapping[str, Any] | None = None,
    origins: Sequence[str] = (),
    heartbeat: float = HEARTBEAT_SECONDS,
    on_listening: Callable[[str], object] | None = None,
) -> None:
    """Serve topics over HTTP until ``stop`` is set; see the head of this module. May switch.

    :param address: to listen on; port 0 for any free one
    :param origins: of web pages that may make requests, besides the server's own
    :param on_listening: called with the address, when it is open
    :raises InvalidAddress, InvalidOption: if an argument is invalid
    :raises OSError: the address cannot be listened on
    """
    where = parse_address(address, to_listen=True)
    is_loopback = bool(_LOOPBACK.fullmatch(f"[{where.host}]" if ":" in where.host else where.host))
    listener = listen(address)
    app = PubSub(
        source,
        stop=stop,
        producer_options=producer_options,
        origins=origins,
        loopback_only=is_loopback,
        heartbeat=heartbeat,
    )
    # stop() waits only for requests that run in a pool.
    pool = Pool(_MOST_CLIENTS)
    connections = HTTPConnections(_MOST_CLIENTS)
    server = HTTPServer(listener, app, logger, body_limit=_MAX_BODY_BYTES, connections=connections, spawn=pool)
    try:
        server.start()
        shown = bound_address(listener)
        logger.info("listening on %s", shown)
        if on_listening is not None:
            on_listening(shown)
        stop.wait()
    finally:
        server.stop(_STOP_TIMEOUT)
        app.close()
