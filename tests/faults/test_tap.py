from __future__ import annotations

import pytest

from gnsq_like.wire import commands
from gnsq_like.wire.frames import ERROR, OK, RESPONSE, encode_frame, encode_message
from tests.faults.bodies import make_body, number_of
from tests.faults.tap import Tap
from tests.support.wire import ANSWER

ID = b"0123456789abcdef"


class Seen:
    """Keeps what the tap tells."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        return lambda *values: self.calls.append((name, *values))


@pytest.fixture
def seen() -> Seen:
    return Seen()


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_commands_of_a_client_whole_and_in_pieces(seen: Seen, size: int) -> None:
    tap = Tap(2, seen, lambda: 5.0)
    data = commands.MAGIC_V2 + commands.identify({"client_id": "c0.1"}) + commands.sub("t", "c") + commands.rdy(3)
    data += commands.NOP + commands.fin(ID) + commands.req(ID, 0) + commands.touch(ID) + commands.CLS
    data += commands.pub("t", make_body(7, 50)) + commands.dpub("t", 100, make_body(8))
    data += commands.mpub("t", [make_body(9), make_body(10)])
    for piece in pieces(data, size):
        tap(4, "from client", piece)
    name = (2, 4)
    assert seen.calls == [
        ("identified", name, "c0.1"),
        ("granted", name, 3, 5.0),
        ("answered", 2, name, ID, "FIN", 5.0),
        ("answered", 2, name, ID, "REQ", 5.0),
        ("unsubscribed", name, 5.0),
        *[("published", 2, number, 5.0) for number in (7, 8, 9, 10)],
    ]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_messages_as_nsqd_sends_them_and_as_the_client_gets_them(seen: Seen, size: int) -> None:
    tap = Tap(0, seen, lambda: 5.0)
    data = encode_frame(RESPONSE, ANSWER) + encode_frame(RESPONSE, OK) + encode_message(1, 1, ID, make_body(7))
    data += encode_frame(ERROR, b"E_FIN_FAILED") + encode_message(1, 2, ID, make_body(8, 100))
    for piece in pieces(data, size):
        tap(1, "from server", piece)
    assert seen.calls == [("delivered", 0, (0, 1), ID, number, attempts, 5.0) for number, attempts in ((7, 1), (8, 2))]
    seen.calls.clear()
    for piece in pieces(data, size):
        tap(1, "to client", piece)
    assert seen.calls == [("received", (0, 1), ID, 5.0)] * 2


def test_the_ends_of_a_connection_and_nothing_after_them(seen: Seen) -> None:
    tap = Tap(0, seen, lambda: 5.0)
    tap(1, "server closed", b"")
    tap(1, "to client", encode_message(1, 1, ID, make_body(7)))
    tap(1, "client closed", b"")
    tap(1, "to client", encode_message(1, 1, ID, make_body(7)))
    assert [call[0] for call in seen.calls] == ["server_closed", "received", "client_closed"]


def test_a_garbled_byte_ends_what_can_be_read(seen: Seen) -> None:
    tap = Tap(0, seen, lambda: 5.0)
    tap(1, "to client", b"\xff" + encode_message(1, 1, ID, make_body(7))[1:])
    tap(1, "to client", encode_message(1, 1, ID, make_body(7)))
    assert seen.calls == []


def test_bodies_have_their_number() -> None:
    assert number_of(make_body(123, 40)) == 123
    assert len(make_body(123, 40)) == 44
