"""Targets for NSQ's TCP protocol: frames, session, requests, codecs, and JSON in their bodies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from gnsq_like.errors import NotRunning, ProtocolError
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.nsqd.identify import BadIdentify, ClientSettings, identify
from gnsq_like.server.shared.requests import BadBodySize, LineTooLong, Requests
from gnsq_like.transport.compression import PIECE_BYTES, Codec, Deflate, Snappy
from gnsq_like.wire.frames import FrameDecoder
from gnsq_like.wire.negotiated import Authorized, Negotiated
from gnsq_like.wire.session import AuthRequired, Broken, Confirmed, Identified, Refused, Session, Upgrade
from tests.fuzz.streams import head, pieces

_MAX_BYTES = 1 << 16
#: Bytes that an input may expand to before the rest of it is left.
_EXPANDED = 1 << 20


def frames(data: bytes) -> None:
    """Frames are the same in pieces; the fault is a ProtocolError, after which nothing more is taken."""
    [how], data = head(data, 1)
    assert _decoded(pieces(data, how)) == _decoded([data])


def _decoded(parts: Iterable[bytes]) -> tuple[list[object], str]:
    decoder = FrameDecoder(_MAX_BYTES)
    found: list[object] = []
    for part in parts:
        for item in decoder.feed(part):
            found += item if isinstance(item, list) else [item]
        if decoder.error is not None:
            with suppress(ProtocolError):
                decoder.feed(b"x")
                raise AssertionError("it goes on after a fault")
            return found, str(decoder.error)
    return found, ""


def session(data: bytes) -> None:
    """nsqd's bytes cause events, of which Broken is the last; publishes are confirmed in order."""
    [wishes, how], data = head(data, 2)
    asked = [name for bit, name in enumerate(("tls_v1", "snappy", "deflate")) if wishes >> bit & 1]
    session: Session[object] = Session(dict.fromkeys(asked, True), _MAX_BYTES, asked[:1] if wishes & 8 else [])
    session.start()
    left = deque(pieces(data, how))
    tokens = 0
    settled: list[object] = []
    while left and not session.broken:
        events = session.receive(left.popleft())
        assert not any(isinstance(event, Broken) for event in events[:-1])
        assert session.broken == (bool(events) and isinstance(events[-1], Broken))
        for event in events:
            if isinstance(event, Upgrade):
                assert event is events[-1]
                left.appendleft(event.rest)
            elif isinstance(event, AuthRequired) and not session.broken:
                session.authenticate("secret")
            elif isinstance(event, Identified) and not session.broken:
                session.subscribe("t", "c", 0)
                session.expect(0)
                tokens = 1
            elif isinstance(event, Confirmed):
                settled += event
                if 0 in event and not session.broken:
                    if wishes & 16:
                        session.close(tokens)
                    for _ in range(3):
                        session.expect(tokens)
                        tokens += 1
            elif isinstance(event, Refused):
                settled.append(event.token)
    if session.broken:
        with suppress(NotRunning):
            session.receive(b"")
            raise AssertionError("it goes on after the end")
    assert settled + session.abandon() == list(range(tokens))


def requests(data: bytes) -> None:
    """A client's commands are the same in pieces; only these two errors, and nothing is held but what was sent."""
    [how], data = head(data, 1)
    assert _commands(pieces(data, how)) == _commands([data])


def _commands(parts: Iterable[bytes]) -> list[object]:
    requests = Requests()
    taking = _Taking(requests)
    given = 0
    try:
        for part in parts:
            requests.feed(part)
            given += len(part)
            while taking.step():
                assert 0 <= requests.held_bytes <= given
    except (LineTooLong, BadBodySize) as exc:
        taking.found.append(str(exc))
    return taking.found


class _Taking:
    """Takes commands as a daemon does."""

    def __init__(self, requests: Requests) -> None:
        self.found: list[object] = []
        self._requests = requests
        self._line: list[bytes] | None = None
        self._sizes: list[int] = []
        self._bodies: list[bytes] = []
        self._is_over = False

    def step(self) -> bool:
        """Take something; False if more bytes are needed, or none are wanted."""
        if self._is_over:
            return False
        if self._line is None:
            return self._take_line()
        needed = {b"PUB": 1, b"MPUB": 2}.get(self._line[0], 0)
        while len(self._sizes) < needed:
            size = self._requests.take_int32()
            if size is None:
                return False
            self._sizes.append(size)
            if not 0 <= size <= _MAX_BYTES:
                self.found.append(("size", size))
                self._is_over = True
                return False
        return self._take_body(needed)

    def _take_line(self) -> bool:
        ids = self._requests.take_fins()
        self.found += [[b"FIN", each] for each in ids]
        if ids:
            return True
        self._line = self._requests.take_line()
        return self._line is not None

    def _take_body(self, sizes: int) -> bool:
        assert self._line is not None
        if sizes == 1:
            body = self._requests.take_bytes(self._sizes[0])
            if body is None:
                return False
            self._bodies = [body]
        elif sizes == 2 and not self._requests.take_bodies(self._bodies, self._sizes[1], 100):
            return False
        self.found += [self._line, *self._bodies]
        self._line, self._sizes, self._bodies = None, [], []
        return True


def codecs(data: bytes) -> None:
    """The same in pieces, no piece larger than asked for; and what was compressed comes back."""
    [kind, how], data = head(data, 2)
    make = Snappy if kind & 1 else Deflate
    if kind & 2:
        codec = make()
        wire = b"".join(codec.compress(part) for part in pieces(data, how))
        assert _expanded(make(), pieces(wire, 7)) == (data, False)
    else:
        whole, fails = _expanded(make(), [data])
        cut, cut_fails = _expanded(make(), pieces(data, how))
        if len(whole) < _EXPANDED and len(cut) < _EXPANDED:
            assert fails == cut_fails
            assert cut == whole or (fails and cut.startswith(whole))


def _expanded(codec: Codec, parts: Iterable[bytes]) -> tuple[bytes, bool]:
    """What comes out, and whether the input is invalid."""
    out = bytearray()
    try:
        for part in parts:
            piece = codec.decompress(part)
            while True:
                assert len(piece) <= PIECE_BYTES
                out += piece
                if not codec.pending or len(out) >= _EXPANDED:
                    break
                piece = codec.decompress()
            if len(out) >= _EXPANDED:
                break
    except ProtocolError:
        return bytes(out), True
    return bytes(out), False


_OPTIONS = NsqdOptions()


def negotiation(data: bytes) -> None:
    """IDENTIFY and AUTH, both ways."""
    with suppress(ProtocolError):
        Negotiated.from_payload(data)
    with suppress(ProtocolError):
        Authorized.from_payload(data)
    with suppress(BadIdentify):
        identify(data, ClientSettings(_OPTIONS, "127.0.0.1"), _OPTIONS)
