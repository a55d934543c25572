"""Parsing commands reverses building them, however the bytes are split."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import ProtocolError
from gnsq_like.server.shared.requests import MAX_LINE_BYTES, BadBodySize, LineTooLong, Requests
from gnsq_like.wire import commands

names = st.from_regex(r"[.a-zA-Z0-9_-]{1,40}(#ephemeral)?", fullmatch=True)
# nsqd's own ids are hex; it accepts any 16 bytes that form one word of a line.
message_ids = st.one_of(
    st.from_regex(rb"[0-9a-f]{16}", fullmatch=True),
    st.lists(st.integers(0, 255).filter(lambda byte: byte not in b" \r\n"), min_size=16, max_size=16).map(bytes),
)
bodies = st.binary(min_size=1, max_size=60)
milliseconds = st.integers(0, 3_600_000)

#: A parsed command: its words, and its body or messages.
Decoded = tuple[list[bytes], list[bytes]]


def encoded(text: str) -> bytes:
    return text.encode()


#: A command's bytes, and what parsing them must give.
some_command = st.one_of(
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(
        lambda fields: (commands.identify(fields), ([b"IDENTIFY"], [commands.identify(fields)[13:]]))
    ),
    st.text(max_size=20).map(lambda secret: (commands.auth(secret), ([b"AUTH"], [encoded(secret)]))),
    st.builds(lambda t, c: (commands.sub(t, c), ([b"SUB", encoded(t), encoded(c)], [])), names, names),
    st.integers(0, 2500).map(lambda n: (commands.rdy(n), ([b"RDY", b"%d" % n], []))),
    message_ids.map(lambda i: (commands.fin(i), ([b"FIN", i], []))),
    st.builds(lambda i, ms: (commands.req(i, ms), ([b"REQ", i, b"%d" % ms], [])), message_ids, milliseconds),
    message_ids.map(lambda i: (commands.touch(i), ([b"TOUCH", i], []))),
    st.builds(lambda t, b: (commands.pub(t, b), ([b"PUB", encoded(t)], [b])), names, bodies),
    st.builds(
        lambda t, ms, b: (commands.dpub(t, ms, b), ([b"DPUB", encoded(t), b"%d" % ms], [b])),
        names,
        milliseconds,
        bodies,
    ),
    st.builds(
        lambda t, bs: (commands.mpub(t, bs), ([b"MPUB", encoded(t)], bs)),
        names,
        st.lists(bodies, min_size=1, max_size=8),
    ),
    st.sampled_from([(commands.NOP, ([b"NOP"], [])), (commands.CLS, ([b"CLS"], [])), (commands.PING, ([b"PING"], []))]),
    st.builds(lambda t, c: (commands.register(t, c), ([b"REGISTER", encoded(t), encoded(c)], [])), names, names),
    names.map(lambda t: (commands.register(t), ([b"REGISTER", encoded(t)], []))),
    st.builds(lambda t, c: (commands.unregister(t, c), ([b"UNREGISTER", encoded(t), encoded(c)], [])), names, names),
    names.map(lambda t: (commands.unregister(t), ([b"UNREGISTER", encoded(t)], []))),
)


class Decoder:
    """Takes commands as a daemon does, as far as the bytes fed reach."""

    def __init__(self, requests: Requests | None = None) -> None:
        self.requests = requests or Requests()
        self.decoded: list[Decoded] = []
        self._steps = self._run()

    def feed(self, data: bytes) -> None:
        self.requests.feed(data)
        next(self._steps)

    def _run(self) -> Iterator[None]:
        """Yields whenever it needs more bytes."""
        requests = self.requests
        while True:
            ids = requests.take_fins()
            self.decoded += [([b"FIN", message_id], []) for message_id in ids]
            topic, published = requests.take_pubs(3, 1024)
            self.decoded += [([b"PUB", topic], [body]) for body in published]
            if ids or published:
                continue
            while (words := requests.take_line()) is None:
                yield
            found: list[bytes] = []
            if words[0] in (b"IDENTIFY", b"AUTH", b"PUB", b"DPUB"):
                while (size := requests.take_int32()) is None:
                    yield
                if size < 0:
                    raise ProtocolError("what a daemon refuses before it asks for the body")
                while (body := requests.take_bytes(size)) is None:
                    yield
                found.append(body)
            elif words[0] == b"MPUB":
                while (size := requests.take_int32()) is None:
                    yield
                while (count := requests.take_int32()) is None:
                    yield
                while not requests.take_bodies(found, count, 1024):
                    yield
                assert size == 4 + sum(4 + len(body) for body in found)
            self.decoded.append((words, found))


def decode(*pieces: bytes) -> list[Decoded]:
    decoder = Decoder()
    for piece in pieces:
        decoder.feed(piece)
    return decoder.decoded


@given(st.lists(some_command, max_size=12), st.data())
def test_pipelined_commands_come_back_however_they_are_split(
    sent: list[tuple[bytes, Decoded]], data: st.DataObject
) -> None:
    stream = b"".join(command for command, _ in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(*filter(None, pieces)) == [expected for _, expected in sent]


@given(st.lists(message_ids, min_size=1, max_size=50))
def test_a_run_of_fins_is_taken_at_once(ids: list[bytes]) -> None:
    requests = Requests()
    requests.feed(commands.fin_many(ids) + commands.NOP + commands.fin(ids[0]))
    assert requests.take_fins() == ids
    assert requests.take_fins() == []
    assert requests.take_line() == [b"NOP"]
    assert requests.take_fins() == ids[:1]


@pytest.mark.parametrize(
    "line",
    [b"FIN 0123456789abcde\n", b"FIN 0123456789abcde\r\n", b"FIN 0123456789abcdef0\n", b"FIN 01234567 9abcdef\n"],
    ids=["short", "short with CR", "long", "two words"],
)
def test_a_fin_that_is_not_plain_is_left_to_take_line(line: bytes) -> None:
    requests = Requests()
    requests.feed(line)
    assert requests.take_fins() == []
    assert requests.take_line() == line.rstrip(b"\r\n").split(b" ")


def test_a_run_of_pubs_to_one_topic_is_taken_at_once() -> None:
    requests = Requests()
    requests.feed(b"".join(commands.pub("t", body) for body in (b"1", b"22", b"3")) + commands.pub("tt", b"4"))
    assert requests.take_pubs(2, 9) == (b"t", [b"1", b"22"])
    assert requests.take_pubs(2, 9) == (b"t", [b"3"])
    assert requests.take_pubs(2, 9) == (b"tt", [b"4"])
    assert requests.take_pubs(2, 9)[1] == []
    assert requests.held_bytes == 0


@pytest.mark.parametrize(
    "command",
    [
        *(b"PUB t\n\0\0\0\0", b"PUB t\n\0\0\0\x03abc", b"PUB t\n\xff\xff\xff\xff", b"PUB t\n\0\0\0\x02a"),
        *(b"PUB t\n\0\0\0", b"PUB t\r\n\0\0\0\x01a", b"PUB  t\n\0\0\0\x01a", b"PUB t u\n\0\0\0\x01a", b"PUB t"),
    ],
)
def test_a_pub_that_is_not_plain_whole_and_of_a_valid_size_is_left_alone(command: bytes) -> None:
    requests = Requests()
    requests.feed(commands.pub("t", b"a") + command)
    assert requests.take_pubs(9, 2) == (b"t", [b"a"])
    assert requests.take_pubs(9, 2)[1] == []
    assert requests.held_bytes == len(command)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"NOP\n", [b"NOP"]),
        (b"NOP\r\n", [b"NOP"]),
        (b"NOP\r\r\n", [b"NOP\r"]),
        (b"\n", [b""]),
        (b" NOP\n", [b"", b"NOP"]),
        (b"SUB t  c\n", [b"SUB", b"t", b"", b"c"]),
        (b"SUB t\tc\n", [b"SUB", b"t\tc"]),
        (b"RDY \n", [b"RDY", b""]),
    ],
)
def test_a_line_is_split_at_every_single_space(line: bytes, words: list[bytes]) -> None:
    requests = Requests()
    requests.feed(line)
    assert requests.take_line() == words
    assert requests.take_line() is None


@pytest.mark.parametrize("piece", [1, 7, MAX_LINE_BYTES * 2])
def test_the_longest_line(piece: int) -> None:
    line = b"X" * (MAX_LINE_BYTES - 1) + b"\n"
    requests = Requests()
    for position in range(0, len(line), piece):
        assert requests.take_line() is None
        requests.feed(line[position : position + piece])
    assert requests.take_line() == [line[:-1]]


@pytest.mark.parametrize("piece", [1, 7, MAX_LINE_BYTES * 2])
def test_a_longer_line_is_refused(piece: int) -> None:
    line = b"X" * MAX_LINE_BYTES + b"\n"
    requests = Requests()

    def feed_all() -> None:
        for position in range(0, len(line), piece):
            requests.feed(line[position : position + piece])
            requests.take_line()

    with pytest.raises(LineTooLong):
        feed_all()


@pytest.mark.parametrize(("size", "position"), [(0, 0), (-1, 1), (11, 2), (2**31 - 1, 0)])
def test_a_body_of_a_wrong_size_is_refused_before_it_came(size: int, position: int) -> None:
    requests = Requests()
    requests.feed((b"\0\0\0\x01x" * position) + size.to_bytes(4, "big", signed=True))
    found: list[bytes] = []
    with pytest.raises(BadBodySize) as refused:
        requests.take_bodies(found, 5, 10)
    assert (refused.value.position, refused.value.size) == (position, size)
    assert found == [b"x"] * position


class Counting(Requests):
    """Counts the bytes that are copied to join pieces."""

    copied = 0

    def _join(self) -> None:
        super()._join()
        self.copied += len(self._data)


@pytest.mark.parametrize("piece", [1, 10, 1000])
def test_it_is_linear_in_the_bytes(piece: int) -> None:
    size = 200_000
    data = b"PUB t\n" + size.to_bytes(4, "big") + b"\n" * size
    requests = Counting()
    decoder = Decoder(requests)
    for position in range(0, len(data), piece):
        decoder.feed(data[position : position + piece])
    assert len(decoder.decoded) == 1
    assert requests.copied < 3 * len(data)
