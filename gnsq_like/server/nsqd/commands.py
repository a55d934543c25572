"""The commands of protocol V2 as nsqd executes them: their checks, in nsqd's order, and its exact words.

One :class:`Commands` serves one client. Only ``sub`` and ``cls`` change the client's state, and ``_COMMANDS``
says which commands are valid in which state (docs/internals 1.2). A :class:`Fatal` ends the connection after
its error frame; after any other error the next command follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from gnsq_like.server.broker.broker import SubscribeRefused
from gnsq_like.server.broker.channel import Consumer
from gnsq_like.server.nsqd.auth_servers import AuthServers
from gnsq_like.server.nsqd.bodies import BODY, MESSAGE, take_bodies, take_body, take_size
from gnsq_like.server.nsqd.identify import BadIdentify, identify
from gnsq_like.server.nsqd.permissions import Permissions
from gnsq_like.server.nsqd.publishing import PORTION, publish
from gnsq_like.server.nsqd.tcp import CLOSING, INIT, SUBSCRIBED, NsqdClient
from gnsq_like.server.shared import gotext
from gnsq_like.server.shared.connection import Fatal
from gnsq_like.server.shared.tls import HandshakeFailed
from gnsq_like.server.storage.disk_queue import DiskError
from gnsq_like.wire.frames import CLOSE_WAIT, OK, OK_FRAME
from gnsq_like.wire.names import is_valid_name

_MESSAGE_ID_LENGTH = 16
#: Commands after which the client's turn may end, a power of two; some 10 µs each.
_COMMANDS_AT_ONCE = 16


@lru_cache(maxsize=4096)
def _name(code: bytes, what: bytes, word: bytes) -> str:
    """A topic's or channel's name; raises Fatal with ``code`` if it is not valid."""
    name = word.decode("latin-1")
    if not is_valid_name(name):
        raise Fatal(code, b'%b name "%b" is not valid' % (what, gotext.printable(word).encode()))
    return name


def _publish_topic(command: bytes, words: list[bytes], words_needed: int) -> str:
    if len(words) < words_needed:
        raise Fatal(b"E_INVALID", b"%b insufficient number of parameters" % command)
    return _name(b"E_BAD_TOPIC", command + b" topic", words[1])


def _message_id(command: bytes, words: list[bytes], words_needed: int) -> bytes:
    if len(words) < words_needed:
        raise Fatal(b"E_INVALID", b"%b insufficient number of params" % command)
    if len(words[1]) != _MESSAGE_ID_LENGTH:
        raise Fatal(b"E_INVALID", b"invalid message ID")
    return words[1]


class Commands:
    """Executes one client's commands; the methods with their names raise Fatal.

    :param auth_servers: None if AUTH is not required
    """

    def __init__(self, client: NsqdClient, auth_servers: AuthServers | None) -> None:
        self._client = client
        self._permissions = Permissions(client, auth_servers)
        self._broker = client.broker
        self._options = client.broker.options
        self._requires_tls = self._options.tls_required != "false"

    def run(self) -> None:
        """Take and execute commands until the client leaves. May switch between two commands, and within an MPUB.

        :raises EOFError: if the client closed the connection
        :raises LineTooLong: if it sent a line without an end
        :raises Fatal: for what nsqd closes connections for
        """
        client = self._client
        client.apply_settings()
        requests = client.requests
        executed = 0
        while True:
            executed += 1
            if not executed & (_COMMANDS_AT_ONCE - 1):
                client.share_loop()
            client.waits_since = time.monotonic()
            while not requests.held_bytes:
                client.receive()
            lacks_tls = self._requires_tls and not client.has_tls
            if client.consumer is not None and (ids := requests.take_fins()):
                self._finish(ids)
                continue
            if not lacks_tls:
                topic, bodies = requests.take_pubs(PORTION, self._options.max_msg_size)
                if bodies:
                    self._publish_all(topic, bodies)
                    continue
            words = client.take_line()
            command = words[0]
            if lacks_tls and command != b"IDENTIFY":
                raise Fatal(b"E_INVALID", b"cannot %b in current state (TLS required)" % command)
            known = _COMMANDS.get(command)
            if known is None:
                raise Fatal(b"E_INVALID", b"invalid command " + command)
            if client.state not in known.states:
                raise Fatal(b"E_INVALID", b"cannot %b in current state" % command)
            known.execute(self, words)

    # -- handshake -----------------------------------------------------------------------------------

    def identify(self, words: list[bytes]) -> None:
        client = self._client
        body = take_body(client, b"IDENTIFY", BODY, self._options.max_body_size)
        try:
            negotiated = identify(body, client.settings, self._options)
        except BadIdentify as refusal:
            raise Fatal(refusal.code, str(refusal).encode()) from None
        client.respond(OK if negotiated.answer is None else negotiated.answer)
        try:
            client.upgrade(negotiated)
        except HandshakeFailed as failure:
            raise Fatal(b"E_IDENTIFY_FAILED", f"IDENTIFY failed {failure}".encode()) from None
        client.apply_settings()

    def auth(self, words: list[bytes]) -> None:
        client = self._client
        if len(words) > 1:
            raise Fatal(b"E_INVALID", b"AUTH invalid number of parameters")
        secret = take_body(client, b"AUTH", BODY, self._options.max_body_size)
        access = self._permissions.authenticate(secret)
        answer = {
            "identity": access.identity,
            "identity_url": access.identity_url,
            "permission_count": len(access.authorizations),
        }
        client.respond(gotext.to_json(answer))

    def sub(self, words: list[bytes]) -> None:
        client = self._client
        settings = client.settings
        if not settings.heartbeat_interval:
            raise Fatal(b"E_INVALID", b"cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise Fatal(b"E_INVALID", b"SUB insufficient number of parameters")
        topic = _name(b"E_BAD_TOPIC", b"SUB topic", words[1])
        channel = _name(b"E_BAD_CHANNEL", b"SUB channel", words[2])
        self._permissions.check(b"SUB", topic, channel)
        try:
            client.consumer = self._broker.subscribe(
                topic, channel, client, settings.msg_timeout, settings.sample_rate, client.clock(), settings.distance
            )
        except SubscribeRefused as refusal:
            raise Fatal(b"E_SUB_FAILED", f"SUB failed {refusal}".encode()) from None
        client.state = SUBSCRIBED
        client.respond(OK)

    # -- consuming -----------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        consumer = self._client.consumer
        assert consumer is not None  # by _check_state
        return consumer

    def rdy(self, words: list[bytes]) -> None:
        if self._client.state == CLOSING:
            return
        count = 1
        if len(words) > 1:
            number = gotext.parse_uint64(words[1])
            if number is None:
                raise Fatal(b"E_INVALID", b"RDY could not parse count " + words[1])
            count = gotext.as_int64(number)
        limit = self._options.max_rdy_count
        if not 0 <= count <= limit:
            raise Fatal(b"E_INVALID", b"RDY count %d out of range 0-%d" % (count, limit))
        self._consumer().set_ready(count)
        self._client.flush_if_full()

    def fin(self, words: list[bytes]) -> None:
        self._finish([_message_id(b"FIN", words, 2)])

    def _finish(self, ids: list[bytes]) -> None:
        consumer = self._consumer()
        for message_id, reason in consumer.channel.finish(consumer, ids):
            self._fail(b"FIN", message_id, reason)

    def _fail(self, command: bytes, message_id: bytes, reason: str) -> None:
        """Send an error that is not fatal."""
        self._client.respond_error(b"E_%b_FAILED %b %b failed %b" % (command, command, message_id, reason.encode()))

    def req(self, words: list[bytes]) -> None:
        message_id = _message_id(b"REQ", words, 3)
        milliseconds = gotext.parse_uint64(words[2])
        if milliseconds is None:
            raise Fatal(b"E_INVALID", b"REQ could not parse timeout " + words[2])
        delay = min(max(0.0, gotext.seconds_from_ms(milliseconds)), self._options.max_req_timeout)
        consumer = self._consumer()
        reason = consumer.channel.requeue(consumer, message_id, delay, self._client.clock())
        if reason is not None:
            self._fail(b"REQ", message_id, reason)

    def touch(self, words: list[bytes]) -> None:
        message_id = _message_id(b"TOUCH", words, 2)
        consumer = self._consumer()
        reason = consumer.channel.touch(consumer, message_id, self._client.clock())
        if reason is not None:
            self._fail(b"TOUCH", message_id, reason)

    def cls(self, words: list[bytes]) -> None:
        self._consumer().set_ready(0)
        self._client.state = CLOSING
        self._client.respond(CLOSE_WAIT)

    # -- publishing ----------------------------------------------------------------------------------

    def _publish_all(self, word: bytes, bodies: list[bytes]) -> None:
        """Several PUBs to one topic. If they are refused, none is accepted: an error ends the connection."""
        topic = _name(b"E_BAD_TOPIC", b"PUB topic", word)
        self._permissions.check(b"PUB", topic)
        self._publish(b"PUB", topic, bodies, answers=len(bodies))
        if len(bodies) >= _COMMANDS_AT_ONCE:
            self._client.share_loop()

    def pub(self, words: list[bytes]) -> None:
        topic = _publish_topic(b"PUB", words, 2)
        body = take_body(self._client, b"PUB", MESSAGE, self._options.max_msg_size)
        self._permissions.check(b"PUB", topic)
        self._publish(b"PUB", topic, [body])

    def dpub(self, words: list[bytes]) -> None:
        topic = _publish_topic(b"DPUB", words, 3)
        milliseconds = gotext.parse_uint64(words[2])
        if milliseconds is None:
            raise Fatal(b"E_INVALID", b"DPUB could not parse timeout " + words[2])
        defer = gotext.seconds_from_ms(milliseconds)
        limit = self._options.max_req_timeout
        if not 0 <= defer <= limit:
            raise Fatal(b"E_INVALID", b"DPUB timeout %d out of range 0-%d" % (milliseconds, round(limit * 1000)))
        body = take_body(self._client, b"DPUB", MESSAGE, self._options.max_msg_size)
        self._permissions.check(b"DPUB", topic)
        self._publish(b"DPUB", topic, [body], defer)

    def _publish(
        self, command: bytes, topic: str, bodies: list[bytes], defer: float = 0.0, *, answers: int = 1
    ) -> None:
        client = self._client
        try:
            publish(self._broker, self._broker.topic(topic), bodies, client.clock, client.share_loop, defer)
        except DiskError as error:
            raise Fatal(b"E_%b_FAILED" % command, b"%b failed %b" % (command, str(error).encode())) from None
        client.publish_counts[topic] = client.publish_counts.get(topic, 0) + len(bodies)
        client.output.add(OK_FRAME * answers)

    def mpub(self, words: list[bytes]) -> None:
        if len(words) < 2:
            raise Fatal(b"E_INVALID", b"MPUB insufficient number of parameters")
        topic = _name(b"E_BAD_TOPIC", b"E_BAD_TOPIC MPUB topic", words[1])  # nsqd repeats the code here
        self._permissions.check(b"MPUB", topic)
        self._broker.topic(topic)
        take_size(self._client, b"MPUB", BODY, self._options.max_body_size)
        bodies = take_bodies(self._client, self._options.max_body_size, self._options.max_msg_size)
        self._publish(b"MPUB", topic, bodies)


class _Command(NamedTuple):
    execute: Callable[[Commands, list[bytes]], None]
    #: In which it is valid.
    states: frozenset[int] = frozenset({INIT, SUBSCRIBED, CLOSING})


_BEFORE_SUB = frozenset({INIT})
_AFTER_SUB = frozenset({SUBSCRIBED, CLOSING})
_COMMANDS = {
    b"IDENTIFY": _Command(Commands.identify, _BEFORE_SUB),
    b"AUTH": _Command(Commands.auth, _BEFORE_SUB),
    b"SUB": _Command(Commands.sub, _BEFORE_SUB),
    b"RDY": _Command(Commands.rdy, _AFTER_SUB),
    b"FIN": _Command(Commands.fin, _AFTER_SUB),
    b"REQ": _Command(Commands.req, _AFTER_SUB),
    b"TOUCH": _Command(Commands.touch, _AFTER_SUB),
    b"CLS": _Command(Commands.cls, frozenset({SUBSCRIBED})),
    b"NOP": _Command(lambda commands, words: None),
    b"PUB": _Command(Commands.pub),
    b"MPUB": _Command(Commands.mpub),
    b"DPUB": _Command(Commands.dpub),
}
