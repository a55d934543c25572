"""The commands of protocol V2 as nsqd executes them: their checks, in nsqd's order, and its exact words.

One :class:`Commands` serves one client. Only ``_sub`` and ``_cls`` change the client's state, and ``_ALLOWED``
says which commands are valid in which state (docs/internals 1.2). A :class:`Fatal` ends the connection after
its error frame; after any other error the next command follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from gnsq_like.server.broker.broker import SubscribeRefused
from gnsq_like.server.broker.channel import Consumer
from gnsq_like.server.nsqd.auth_servers import AuthFailed
from gnsq_like.server.nsqd.authorizations import Access
from gnsq_like.server.nsqd.identify import BadIdentify, identify
from gnsq_like.server.nsqd.publishing import PORTION, publish
from gnsq_like.server.nsqd.tcp import CLOSING, INIT, SUBSCRIBED, NsqdClient
from gnsq_like.server.shared import gotext
from gnsq_like.server.shared.connection import Fatal
from gnsq_like.server.shared.requests import LEAST_MPUB_ENTRY, BadBodySize
from gnsq_like.server.shared.tls import HandshakeFailed
from gnsq_like.server.storage.disk_queue import DiskError
from gnsq_like.wire.frames import CLOSE_WAIT, OK, OK_FRAME
from gnsq_like.wire.names import is_valid_name

log = logging.getLogger("gnsq_like.nsqd")

#: The states in which a command is valid; those not listed always are.
_ALLOWED: dict[bytes, frozenset[int]] = {
    b"IDENTIFY": frozenset({INIT}),
    b"AUTH": frozenset({INIT}),
    b"SUB": frozenset({INIT}),
    b"RDY": frozenset({SUBSCRIBED, CLOSING}),
    b"FIN": frozenset({SUBSCRIBED, CLOSING}),
    b"REQ": frozenset({SUBSCRIBED, CLOSING}),
    b"TOUCH": frozenset({SUBSCRIBED, CLOSING}),
    b"CLS": frozenset({SUBSCRIBED}),
}

_MESSAGE_ID_LENGTH = 16
#: Commands after which the client's turn may end, a power of two; some 10 µs each.
_COMMANDS_AT_ONCE = 16


@lru_cache(maxsize=4096)
def _valid_name(name: bytes) -> str | None:
    text = name.decode("latin-1")
    return text if is_valid_name(text) else None


class Commands:
    """Executes one client's commands."""

    def __init__(self, client: NsqdClient) -> None:
        self._client = client
        self._broker = client.broker
        self._options = client.broker.options
        self._requires_tls = self._options.tls_required != "false"
        self._executors: dict[bytes, Callable[[list[bytes]], None]] = {
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
            b"SUB": self._sub,
            b"RDY": self._rdy,
            b"FIN": self._fin,
            b"REQ": self._req,
            b"TOUCH": self._touch,
            b"CLS": self._cls,
            b"NOP": self._nop,
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
        }

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
            client.expect_command()
            while not requests.held_bytes:
                client.receive()
            ids = requests.take_fins()
            if ids:
                self._check_state(b"FIN")
                self._finish(ids)
                continue
            topic, bodies = requests.take_pubs(PORTION, self._options.max_msg_size)
            if bodies:
                self._check_state(b"PUB")
                self._publish_all(topic, bodies)
                continue
            words = client.take_line()
            command = words[0]
            self._check_state(command)
            execute = self._executors.get(command)
            if execute is None:
                raise Fatal(b"E_INVALID", b"invalid command " + command)
            execute(words)

    def _check_state(self, command: bytes) -> None:
        if self._requires_tls and command != b"IDENTIFY" and not self._client.has_tls:
            raise Fatal(b"E_INVALID", b"cannot %b in current state (TLS required)" % command)
        allowed = _ALLOWED.get(command)
        if allowed is not None and self._client.state not in allowed:
            raise Fatal(b"E_INVALID", b"cannot %b in current state" % command)

    # -- handshake -----------------------------------------------------------------------------------

    def _identify(self, words: list[bytes]) -> None:
        body = self._take_sized_body(b"IDENTIFY")
        client = self._client
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

    def _auth(self, words: list[bytes]) -> None:
        client = self._client
        if len(words) > 1:
            raise Fatal(b"E_INVALID", b"AUTH invalid number of parameters")
        secret = self._take_sized_body(b"AUTH")
        if client.access is not None:
            raise Fatal(b"E_INVALID", b"AUTH already set")
        if not self._options.auth_http_addresses:
            raise Fatal(b"E_AUTH_DISABLED", b"AUTH disabled")
        access = self._ask_for_access(secret)
        if not access.authorizations:
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH no authorizations found")
        answer = {
            "identity": access.identity,
            "identity_url": access.identity_url,
            "permission_count": len(access.authorizations),
        }
        client.respond(gotext.to_json(answer))

    def _ask_for_access(self, secret: bytes) -> Access:
        try:
            return self._client.ask_for_access(secret)
        except AuthFailed as failure:
            # The client is not told the reason.
            log.warning("client(%s): AUTH failed: %s", self._client.address, failure)
            raise Fatal(b"E_AUTH_FAILED", b"AUTH failed") from None

    def _check_auth(self, command: bytes, topic: str, channel: str = "") -> None:
        """Check that the client may subscribe to the channel or, without one, publish to the topic; raises Fatal."""
        if not self._options.auth_http_addresses:
            return
        client = self._client
        access = client.access
        if access is None:
            raise Fatal(b"E_AUTH_FIRST", b"AUTH required before " + command)
        if client.access_until < client.clock():
            access = self._ask_for_access(client.auth_secret)
        if not access.allows(topic, channel):
            detail = f' on "{topic}" "{channel}"'.encode()
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH failed for " + command + detail)

    def _take_sized_body(self, command: bytes) -> bytes:
        """The body of IDENTIFY or AUTH."""
        try:
            size = self._client.take_int32()
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"%b failed to read body size" % command) from None
        self._check_body_size(command, size)
        try:
            return self._client.take_bytes(size)
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"%b failed to read body" % command) from None

    def _check_body_size(self, command: bytes, size: int) -> None:
        limit = self._options.max_body_size
        if size > limit:
            raise Fatal(b"E_BAD_BODY", b"%b body too big %d > %d" % (command, size, limit))
        if size <= 0:
            raise Fatal(b"E_BAD_BODY", b"%b invalid body size %d" % (command, size))

    def _sub(self, words: list[bytes]) -> None:
        client = self._client
        settings = client.settings
        if not settings.heartbeat_interval:
            raise Fatal(b"E_INVALID", b"cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise Fatal(b"E_INVALID", b"SUB insufficient number of parameters")
        topic = self._topic_name(b"SUB", words[1])
        channel = _valid_name(words[2])
        if channel is None:
            raise Fatal(b"E_BAD_CHANNEL", b"SUB channel name %b is not valid" % gotext.quote(words[2]))
        self._check_auth(b"SUB", topic, channel)
        try:
            client.consumer = self._broker.subscribe(
                topic, channel, client, settings.msg_timeout, settings.sample_rate, client.clock(), settings.distance
            )
        except SubscribeRefused as refusal:
            raise Fatal(b"E_SUB_FAILED", f"SUB failed {refusal}".encode()) from None
        client.state = SUBSCRIBED
        client.respond(OK)

    def _topic_name(self, command: bytes, word: bytes) -> str:
        topic = _valid_name(word)
        if topic is None:
            raise Fatal(b"E_BAD_TOPIC", b"%b topic name %b is not valid" % (command, gotext.quote(word)))
        return topic

    # -- consuming -----------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        consumer = self._client.consumer
        assert consumer is not None  # by _check_state
        return consumer

    def _rdy(self, words: list[bytes]) -> None:
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

    def _message_id(self, command: bytes, words: list[bytes], words_needed: int) -> bytes:
        if len(words) < words_needed:
            raise Fatal(b"E_INVALID", b"%b insufficient number of params" % command)
        if len(words[1]) != _MESSAGE_ID_LENGTH:
            raise Fatal(b"E_INVALID", b"invalid message ID")
        return words[1]

    def _fin(self, words: list[bytes]) -> None:
        self._finish([self._message_id(b"FIN", words, 2)])

    def _finish(self, ids: list[bytes]) -> None:
        consumer = self._consumer()
        for message_id, reason in consumer.channel.finish(consumer, ids):
            self._fail(b"FIN", message_id, reason)

    def _fail(self, command: bytes, message_id: bytes, reason: str) -> None:
        """Send an error that is not fatal."""
        self._client.respond_error(b"E_%b_FAILED %b %b failed %b" % (command, command, message_id, reason.encode()))

    def _req(self, words: list[bytes]) -> None:
        message_id = self._message_id(b"REQ", words, 3)
        milliseconds = gotext.parse_uint64(words[2])
        if milliseconds is None:
            raise Fatal(b"E_INVALID", b"REQ could not parse timeout " + words[2])
        delay = min(max(0.0, gotext.seconds_from_ms(milliseconds)), self._options.max_req_timeout)
        consumer = self._consumer()
        reason = consumer.channel.requeue(consumer, message_id, delay, self._client.clock())
        if reason is not None:
            self._fail(b"REQ", message_id, reason)

    def _touch(self, words: list[bytes]) -> None:
        message_id = self._message_id(b"TOUCH", words, 2)
        consumer = self._consumer()
        reason = consumer.channel.touch(consumer, message_id, self._client.clock())
        if reason is not None:
            self._fail(b"TOUCH", message_id, reason)

    def _cls(self, words: list[bytes]) -> None:
        self._consumer().set_ready(0)
        self._client.state = CLOSING
        self._client.respond(CLOSE_WAIT)

    def _nop(self, words: list[bytes]) -> None:
        pass

    # -- publishing ----------------------------------------------------------------------------------

    def _publish_all(self, word: bytes, bodies: list[bytes]) -> None:
        """Several PUBs to one topic. If they are refused, none is accepted: an error ends the connection."""
        topic = self._topic_name(b"PUB", word)
        self._check_auth(b"PUB", topic)
        self._publish(b"PUB", topic, bodies, answers=len(bodies))
        if len(bodies) >= _COMMANDS_AT_ONCE:
            self._client.share_loop()

    def _pub(self, words: list[bytes]) -> None:
        topic = self._publish_topic(b"PUB", words, 2)
        body = self._take_message(b"PUB")
        self._check_auth(b"PUB", topic)
        self._publish(b"PUB", topic, [body])

    def _dpub(self, words: list[bytes]) -> None:
        topic = self._publish_topic(b"DPUB", words, 3)
        milliseconds = gotext.parse_uint64(words[2])
        if milliseconds is None:
            raise Fatal(b"E_INVALID", b"DPUB could not parse timeout " + words[2])
        defer = gotext.seconds_from_ms(milliseconds)
        limit = self._options.max_req_timeout
        if not 0 <= defer <= limit:
            raise Fatal(b"E_INVALID", b"DPUB timeout %d out of range 0-%d" % (milliseconds, round(limit * 1000)))
        body = self._take_message(b"DPUB")
        self._check_auth(b"DPUB", topic)
        self._publish(b"DPUB", topic, [body], defer)

    def _publish_topic(self, command: bytes, words: list[bytes], words_needed: int) -> str:
        if len(words) < words_needed:
            raise Fatal(b"E_INVALID", b"%b insufficient number of parameters" % command)
        return self._topic_name(command, words[1])

    def _take_message(self, command: bytes) -> bytes:
        try:
            size = self._client.take_int32()
        except EOFError:
            raise Fatal(b"E_BAD_MESSAGE", b"%b failed to read message body size" % command) from None
        if size <= 0:
            raise Fatal(b"E_BAD_MESSAGE", b"%b invalid message body size %d" % (command, size))
        limit = self._options.max_msg_size
        if size > limit:
            raise Fatal(b"E_BAD_MESSAGE", b"%b message too big %d > %d" % (command, size, limit))
        try:
            return self._client.take_bytes(size)
        except EOFError:
            raise Fatal(b"E_BAD_MESSAGE", b"%b failed to read message body" % command) from None

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

    def _mpub(self, words: list[bytes]) -> None:
        if len(words) < 2:
            raise Fatal(b"E_INVALID", b"MPUB insufficient number of parameters")
        topic = _valid_name(words[1])
        if topic is None:  # nsqd repeats the code here
            detail = b"E_BAD_TOPIC MPUB topic name %b is not valid" % gotext.quote(words[1])
            raise Fatal(b"E_BAD_TOPIC", detail)
        self._check_auth(b"MPUB", topic)
        self._broker.topic(topic)
        client = self._client
        try:
            size = client.take_int32()
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"MPUB failed to read body size") from None
        # The size is checked but not used: the content itself says where it ends (docs/internals 1.10).
        self._check_body_size(b"MPUB", size)
        try:
            count = client.take_int32()
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"MPUB failed to read message count") from None
        if not 0 < count <= (self._options.max_body_size - 4) // LEAST_MPUB_ENTRY:
            raise Fatal(b"E_BAD_BODY", b"MPUB invalid message count %d" % count)
        self._publish(b"MPUB", topic, self._take_bodies(count))

    def _take_bodies(self, count: int) -> list[bytes]:
        client = self._client
        limit = self._options.max_msg_size
        bodies: list[bytes] = []
        try:
            while not client.requests.take_bodies(bodies, count, limit):
                client.receive()
        except BadBodySize as bad:
            if bad.size <= 0:
                detail = b"MPUB invalid message(%d) body size %d" % (bad.position, bad.size)
            else:
                detail = b"MPUB message too big %d > %d" % (bad.size, limit)
            raise Fatal(b"E_BAD_MESSAGE", detail) from None
        except EOFError:
            if client.requests.held_bytes < 4:
                detail = b"MPUB failed to read message(%d) body size" % len(bodies)
            else:
                detail = b"MPUB failed to read message body"
            raise Fatal(b"E_BAD_MESSAGE", detail) from None
        return bodies
