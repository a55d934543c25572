"""Commands, byte for byte (docs/internals 1.3 to 1.11, 4.1), and what no command can be made of.

That any command is read back as it was made: tests/server/shared/test_requests.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import InvalidBody, InvalidName
from gnsq_like.wire import commands

ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"

#: Each command, and what nsqd reads.
EXAMPLES = [
    (lambda: commands.MAGIC_V2 + commands.NOP + commands.CLS, b"  V2NOP\nCLS\n"),
    (lambda: commands.MAGIC_V1 + commands.PING, b"  V1PING\n"),
    (
        lambda: commands.identify({"client_id": "me", "snappy": True}),
        b'IDENTIFY\n\0\0\0\x20{"client_id":"me","snappy":true}',
    ),
    (lambda: commands.auth("secret"), b"AUTH\n\0\0\0\x06secret"),
    (lambda: commands.sub("t", "c#ephemeral"), b"SUB t c#ephemeral\n"),
    (lambda: commands.rdy(0), b"RDY 0\n"),
    (lambda: commands.fin(ID), b"FIN 0123456789abcdef\n"),
    (lambda: commands.fin_many([ID]), b"FIN 0123456789abcdef\n"),
    (lambda: commands.fin_many([ID, OTHER_ID]), b"FIN 0123456789abcdef\nFIN fedcba9876543210\n"),
    (lambda: commands.fin_many([]), b""),
    (lambda: commands.req(ID, 1500), b"REQ 0123456789abcdef 1500\n"),
    (lambda: commands.touch(ID), b"TOUCH 0123456789abcdef\n"),
    (lambda: commands.pub("t", b"x\n"), b"PUB t\n\0\0\0\x02x\n"),
    (lambda: commands.dpub("t", 2500, b"x"), b"DPUB t 2500\n\0\0\0\x01x"),
    (lambda: commands.mpub("t", [b"ab", b"c"]), b"MPUB t\n\0\0\0\x0f\0\0\0\x02\0\0\0\x02ab\0\0\0\x01c"),
    (lambda: commands.register("t"), b"REGISTER t\n"),
    (lambda: commands.register("t", "c"), b"REGISTER t c\n"),
    (lambda: commands.unregister("t"), b"UNREGISTER t\n"),
    (lambda: commands.unregister("t", "c"), b"UNREGISTER t c\n"),
]


@pytest.mark.parametrize(("make", "expected"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_each_command(make: Callable[[], bytes], expected: bytes) -> None:
    assert make() == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda name: commands.sub(name, "c"),
        lambda name: commands.sub("t", name),
        lambda name: commands.pub(name, b"x"),
        lambda name: commands.dpub(name, 0, b"x"),
        lambda name: commands.mpub(name, [b"x"]),
        lambda name: commands.register(name),
        lambda name: commands.register("t", name),
        lambda name: commands.unregister("t", name),
    ],
)
@pytest.mark.parametrize("name", ["", "two words", "line\n", "t\nFIN", "x" * 65])
def test_a_name_that_would_end_its_line_early_is_refused(make: Callable[[str], bytes], name: str) -> None:
    with pytest.raises(InvalidName):
        make(name)


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_of_all_kinds_are_a_body(body: bytes) -> None:
    assert commands.encode_body(body) == b"x"
    assert type(commands.encode_body(body)) is bytes
    assert commands.pub("t", body) == b"PUB t\n\0\0\0\x01x"


@pytest.mark.parametrize(("body", "says"), [(b"", "empty"), ("text", "not str"), (None, "not NoneType"), ([], "list")])
def test_what_is_no_body(body: object, says: str) -> None:
    for make in (commands.encode_body, lambda each: commands.pub("t", each), lambda each: commands.dpub("t", 0, each)):
        with pytest.raises(InvalidBody, match=says):
            make(body)  # type: ignore[arg-type]
    with pytest.raises(InvalidBody, match="message 1: .*" + says):
        commands.mpub("t", [b"x", body])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "message body is empty; nsqd accepts no empty message"),
        ("text", "message body must be bytes, not str; encode it first"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(body: object, says: str) -> None:
    with pytest.raises(InvalidBody, match=f"^{says}$"):
        commands.encode_body(body)  # type: ignore[arg-type]
    with pytest.raises(InvalidBody, match=f"^message 1: {says}$"):
        commands.mpub("t", [b"x", body])  # type: ignore[list-item]


def test_a_body_may_have_a_limit() -> None:
    assert commands.encode_body(b"abc", 3) == b"abc"
    with pytest.raises(InvalidBody, match=r"^message body has 4 bytes, more than the limit of 3$"):
        commands.encode_body(b"abcd", 3)


def test_an_mpub_of_nothing() -> None:
    with pytest.raises(InvalidBody, match=r"^no messages to publish; nsqd accepts no empty MPUB$"):
        commands.mpub("t", [])


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20))
def test_the_sizes_in_an_mpub_add_up(bodies: list[bytes]) -> None:
    command = commands.mpub("t", bodies)
    line, _, rest = command.partition(b"\n")
    assert line == b"MPUB t"
    [size] = struct.unpack_from(">i", rest)
    assert size == len(rest) - 4
    assert rest[4:] == commands.mpub_body(bodies)
    assert size == 4 + sum(4 + len(body) for body in bodies)
