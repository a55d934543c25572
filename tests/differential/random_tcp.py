"""Random command sequences for nsqd: mostly sensible, often odd, sometimes broken.

A sequence is sent whole; the frames that answer it have an order then, as long as no message is among them. So what is
subscribed to is never published to. :class:`Conversation` is the other kind: it takes messages one by one.
"""

from __future__ import annotations

import json
import shutil
import struct
from random import Random
from typing import NamedTuple

from tests.support.daemons import is_after_1_3_0
from tests.support.raw import mpub_body, sized

_PUBLISHED = ["loud", "loud.b", "x" * 64]
_SUBSCRIBED = ["quiet", "quiet.b", "quiet_c"]
_BAD_NAMES = ["", "x" * 65, "a!", "#ephemeral", "a#b", "\x01", "a\tb", "%"]
_CHANNELS = ["c", "d-e", "f#ephemeral"]
_NUMBERS = ["0", "1", "5", "2500", "2501", "-1", "+1", "01", "x", "1.0", "4294967296", "18446744073709551617", ""]
_IDS = ["0123456789abcdef", "0123456789abcde", "0123456789abcdef0", "", "\xff" * 16, '"' * 16]
_ODD_LINES = [
    *(b"", b" ", b"nop", b"NOP x", b" NOP", b"NOP ", b"GET / HTTP/1.1", b"PUB", b"SUB quiet", b"SUB", b"FIN", b"PING"),
    *(b"\xff\xfe", b"MPUB", b"DPUB loud", b"REQ 0123456789abcdef", b"TOUCH", b"IDENTIFY x", b"CLS x", b"AUTH", b"\0"),
]
#: IDENTIFY's fields, with values that are taken and refused.
_FIELDS: dict[str, list[object]] = {
    "client_id": ["a", "", 1, None, "\ud800"],
    "hostname": ["h", [], None],
    "user_agent": ["u/1"],
    "feature_negotiation": [True, True, False, "true"],
    "heartbeat_interval": [-1, 0, 60000, 30000, 60001, 999, 1.5, 30000.0, "1000"],
    "output_buffer_size": [-1, 0, 64, 65536, 63, 65537],
    "output_buffer_timeout": [-1, 0, 25, 30000, 24, 30001],
    "sample_rate": [0, 99, 100, -1, 1 << 31],
    "msg_timeout": [0, 1000, 900000, 999, 900001, -1],
    "tls_v1": [True, False, None],
    "snappy": [False, None],
    "deflate": [False, 0],
    "deflate_level": [6, 0, -1, 99],
    "unknown": [{"a": [1, 1e5]}, 1, "x"],
}
if shutil.which("nsqd") and is_after_1_3_0():
    _FIELDS |= {name: ["here", "<é>", "", None, 1, []] for name in ("topology_zone", "topology_region")}


def sequence(random: Random) -> bytes:
    """The bytes of one connection."""
    if random.random() < 0.02:
        # Alone: NSQ's closes on what it has not read, which takes away its answer.
        return random.choice([b"  V1", b"", b"  V", b"\0\0\0\0"])
    commands = b"".join(_command(random) for _ in range(random.choice([1, 2, 3, 5, 8])))
    if random.random() < 0.05:
        commands = commands[: random.randrange(len(commands) + 1)]
    return b"  V2" + commands


def _command(random: Random) -> bytes:
    makers = [_pub, _pub, _mpub, _dpub, _sub, _sub, _sub, _identify, _identify, _rdy, _answer, _answer, _other, _other]
    return random.choice(makers)(random)


def _line(random: Random, *words: str) -> bytes:
    line = " ".join(words)
    if random.random() < 0.03:
        line += random.choice([" ", " x", "\r\r", "\t"])
    return line.encode("latin-1") + (b"\r\n" if random.random() < 0.05 else b"\n")


def _published(random: Random) -> str:
    return random.choice(_PUBLISHED if random.random() < 0.9 else _BAD_NAMES)


def _sized(random: Random) -> bytes:
    if random.random() < 0.08:
        return struct.pack(">i", random.choice([0, -1, 1048577, -(1 << 31), (1 << 31) - 1]))
    return sized(random.randbytes(random.choice([1, 1, 2, 10, 100])))


def _pub(random: Random) -> bytes:
    return _line(random, "PUB", _published(random)) + _sized(random)


def _dpub(random: Random) -> bytes:
    delay = random.choice(["0", "3600000", "3600001", *_NUMBERS])
    return _line(random, "DPUB", _published(random), delay) + _sized(random)


def _mpub(random: Random) -> bytes:
    bodies = [random.randbytes(random.choice([1, 1, 5])) for _ in range(random.choice([1, 1, 2, 5]))]
    body = mpub_body(*bodies)
    choice = random.random()
    if choice < 0.05:
        body = struct.pack(">i", random.choice([0, -1, 3, 5242881])) + body[4:]
    elif choice < 0.10:
        body = body[:4] + struct.pack(">i", random.choice([0, -1, len(bodies) + 1, 1 << 30])) + body[8:]
    elif choice < 0.15:
        body = body[:8] + struct.pack(">i", random.choice([0, -1, 1048577])) + body[12:]
    return _line(random, "MPUB", _published(random)) + body


def _sub(random: Random) -> bytes:
    topic = random.choice(_SUBSCRIBED if random.random() < 0.93 else _BAD_NAMES)
    channel = random.choice(_CHANNELS if random.random() < 0.93 else _BAD_NAMES)
    return _line(random, "SUB", topic, channel)


def _identify(random: Random) -> bytes:
    if random.random() < 0.1:
        return _line(random, "IDENTIFY") + sized(
            random.choice([b"null", b"[]", b"", b"{", b"{}{}", b"\xff", b'{"a":01}'])
        )
    names = random.sample(list(_FIELDS), random.choice([0, 1, 2, 3]))
    body = {name.upper() if random.random() < 0.1 else name: _value(random, name) for name in names}
    return _line(random, "IDENTIFY") + sized(json.dumps(body).encode())


def _value(random: Random, name: str) -> object:
    """Mostly the first one, which is taken."""
    return _FIELDS[name][0] if random.random() < 0.6 else random.choice(_FIELDS[name])


def _rdy(random: Random) -> bytes:
    return _line(random, "RDY", random.choice(_NUMBERS)) if random.random() < 0.95 else _line(random, "RDY")


def _answer(random: Random) -> bytes:
    verb, message_id = random.choice(["FIN", "REQ", "TOUCH"]), random.choice([*_IDS[:1] * 5, *_IDS])
    return _line(random, verb, message_id, *([random.choice(_NUMBERS)] if verb == "REQ" else []))


def _other(random: Random) -> bytes:
    choice = random.random()
    if choice < 0.5:
        return b"NOP\n"
    if choice < 0.7:
        return _line(random, "CLS")
    if choice < 0.8:
        return _line(random, "AUTH") + sized(random.choice([b"secret", b"\0", b""]))
    return random.choice(_ODD_LINES) + b"\n"


class Conversation(NamedTuple):
    """Messages of one topic, taken one by one."""

    bodies: list[bytes]
    #: RDY.
    ready: int
    #: What is done with each message that comes; "FIN" with those beyond. No FIN after a REQ: NSQ's may have sent the
    #: message again before it reads that.
    answers: list[list[str]]


def conversation(random: Random) -> Conversation:
    bodies = [b"%d" % number for number in range(random.randint(1, 4))]
    answers = [
        random.choice([["FIN"], ["REQ"], ["TOUCH", "FIN"], ["FIN", "FIN"], ["FIN", "TOUCH"], ["FIN", "REQ"]])
        for _ in range(random.randint(0, 5))
    ]
    return Conversation(bodies, random.choice([1, 1, 2, 10]), answers)
