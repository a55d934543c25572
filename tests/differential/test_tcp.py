"""Random TCP command sequences to our nsqd and NSQ's: the frames are the same, and so is what they leave behind."""

import json
import struct
from functools import partial
from random import Random
from typing import Any

import pytest
from gevent import socket

from tests.differential import random_tcp
from tests.differential.both import Both, both, compare, how_many
from tests.support.daemons import is_after_1_3_0, wait_for
from tests.support.raw import MESSAGE, Client, connect, sized, stats

pytestmark = [pytest.mark.real_nsqd, pytest.mark.timeout(3600)]

SEQUENCES = how_many("GNSQ_LIKE_TCP_SEQUENCES", 600)
#: How often the states are compared.
ROUND = 1000


def frames(address: str, sent: bytes) -> list[Any]:
    """All frames that come until nsqd ends the connection, without heartbeats; JSON as what it says, without what only
    later ones than the nsqd on PATH have."""
    with connect(address) as sock:
        sock.sendall(sent)
        received = b""
        try:
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                received += piece
        except (ConnectionResetError, OSError):  # NSQ's closes on what it has not read
            pass
    found = []
    while received:
        (size,) = struct.unpack_from(">i", received)
        (kind,) = struct.unpack_from(">i", received, 4)
        payload, received = received[8 : 4 + size], received[4 + size :]
        if payload != b"_heartbeat_":
            found.append((kind, _known(json.loads(payload)) if payload.startswith(b"{") else payload))
    return found


def _known(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if is_after_1_3_0() or not name.startswith("topology_")}


def ask(random: Random, daemons: Both) -> tuple[str, object, object]:
    sent = random_tcp.sequence(random)
    return repr(sent), frames(daemons.ours.tcp_address, sent), frames(daemons.real.tcp_address, sent)


def topics(nsqd: Any) -> Any:
    return {
        topic["topic_name"]: (
            topic["message_count"],
            topic["message_bytes"],
            sorted(channel["channel_name"] for channel in topic["channels"]),
            topic["depth"] if not topic["channels"] else 0,
        )
        for topic in stats(nsqd.http_address)["topics"]
    }


def test_sequences() -> None:
    with both("nsqd") as daemons:
        for start in range(0, SEQUENCES, ROUND):
            compare(daemons, min(ROUND, SEQUENCES - start), f"tcp {start}", ask)
            wait_for(lambda: topics(daemons.ours) == topics(daemons.real), "the same topics")


def talk(address: str, topic: str, plan: random_tcp.Conversation) -> tuple[list[Any], list[Any]]:
    """The messages and the errors of a conversation, with numbers for the messages' ids. NSQ's sends the two from
    different goroutines, so which comes first is a matter of time."""
    messages: list[Any] = []
    errors: list[Any] = []
    ids: dict[bytes, bytes] = {}
    with Client(address) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.identify(output_buffer_size=-1)
        for body in plan.bodies:
            client.send(f"PUB {topic}\n".encode(), sized(body))
            client.expect(b"OK")
        client.subscribe(topic, "c#ephemeral", rdy=plan.ready)
        left, answers = len(plan.bodies), [*plan.answers]
        while left:
            kind, payload = client.frame()
            if kind != MESSAGE:
                errors.append((kind, _numbered(payload, ids)))
                continue
            (attempts,) = struct.unpack_from(">H", payload, 8)
            message_id = payload[10:26]
            ids.setdefault(message_id, b"<%d>" % len(ids))
            messages.append((attempts, ids[message_id], payload[26:]))
            verbs = answers.pop(0) if answers else ["FIN"]
            for verb in verbs:
                client.send(verb.encode() + b" " + message_id + (b" 0" if verb == "REQ" else b"") + b"\n")
            left -= next(verb for verb in verbs if verb != "TOUCH") == "FIN"
        client.send(b"CLS\n")
        while (frame := client.frame()) != (0, b"CLOSE_WAIT"):
            errors.append((frame[0], _numbered(frame[1], ids)))
    return messages, errors


def _numbered(text: bytes, ids: dict[bytes, bytes]) -> bytes:
    for message_id, number in ids.items():
        text = text.replace(message_id, number)
    return text


def converse(name: str, random: Random, daemons: Both) -> tuple[str, object, object]:
    plan = random_tcp.conversation(random)
    topic = f"{name}_{random.getrandbits(64):x}#ephemeral"
    return repr(plan), talk(daemons.ours.tcp_address, topic, plan), talk(daemons.real.tcp_address, topic, plan)


def test_conversations() -> None:
    with both("nsqd") as daemons:
        compare(daemons, SEQUENCES // 10, "conversations", partial(converse, "t"))
        wait_for(lambda: topics(daemons.ours) == topics(daemons.real) == {}, "no topic is left")
