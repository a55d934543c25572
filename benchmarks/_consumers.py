"""The consumers that bench.py and latency.py compare, all with the same interface.

``CONSUMERS[name](address, topic, max_in_flight, note, pause)`` subscribes and never returns: ``note`` is
called with each body at the beginning of its handler, and ends the process after enough messages. The handler
then waits ``pause`` seconds, cooperatively (gevent.sleep, asyncio.sleep), and with as many handlers at once as
``max_in_flight`` allows. Only gnsq has one handler per connection.

Clients other than gnsq_like run in a Python of their own; nothing is imported before it is used.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

from _nsqd import CHANNEL

Note = Callable[[bytes], object]
Cut = Callable[[bytes, Note], tuple[bytes, list[bytes]]]
_HEADER = Struct(">ii")


def gnsq_like(address: str, topic: str, max_in_flight: int, note: Note, pause: float, **options: Any) -> None:
    from gevent import sleep

    from gnsq_like import Reader

    def handler(message: Any) -> None:
        note(message.body)
        if pause:
            sleep(pause)

    Reader(topic, CHANNEL, handler, nsqd_tcp_addresses=address, max_in_flight=max_in_flight, **options).run()


def gnsq_like_batches(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    from gnsq_like import Batch, Reader

    def handler(messages: list[Any]) -> None:
        for message in messages:
            note(message.body)

    Reader(topic, CHANNEL, Batch(handler, size=100), nsqd_tcp_addresses=address, max_in_flight=max_in_flight).run()


def gnsq_like_pulled(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    from gnsq_like import Reader

    for message in Reader(topic, CHANNEL, nsqd_tcp_addresses=address, max_in_flight=max_in_flight):
        with message:
            note(message.body)


def cut(data: bytes, note: Note) -> tuple[bytes, list[bytes]]:
    """Cut the frames, and call ``note`` with each body; returns the rest of the bytes, and the answers."""
    answers: list[bytes] = []
    position = 0
    # A frame: 4 bytes of size, 4 of type; a message: 8 of time, 2 of attempts, 16 of id, the body.
    while position + 8 <= len(data):
        size, kind = _HEADER.unpack_from(data, position)
        end = position + 4 + size
        if end > len(data):
            break
        if kind == 2:
            note(data[position + 34 : end])
            answers.append(b"FIN %b\n" % data[position + 18 : position + 34])
        elif data[position + 8 : end] == b"_heartbeat_":
            answers.append(b"NOP\n")
        position = end
    return data[position:], answers


def bare(address: str, topic: str, max_in_flight: int, note: Note, pause: float, cut: Cut = cut) -> None:
    """The minimum with gevent: receive, cut, call, one write with the FINs of the messages received."""
    from gevent import socket

    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2SUB %b %b\nRDY %d\n" % (topic.encode(), CHANNEL.encode(), max_in_flight))
    rest = b""
    while data := sock.recv(65536):
        rest, answers = cut(rest + data, note)
        if answers:
            sock.sendall(b"".join(answers))


def gnsq(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    from gevent import sleep
    from gnsq import Consumer

    def handler(consumer: Any, message: Any) -> None:
        note(message.body)
        if pause:
            sleep(pause)

    Consumer(topic, CHANNEL, address, message_handler=handler, max_in_flight=max_in_flight).start()


def pynsq(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    import asyncio

    import nsq

    def handler(message: Any) -> bool:
        note(message.body)
        return True

    async def waiting_handler(message: Any) -> bool:
        note(message.body)
        await asyncio.sleep(pause)
        return True

    nsq.Reader(
        message_handler=waiting_handler if pause else handler,
        nsqd_tcp_addresses=[address],
        topic=topic,
        channel=CHANNEL,
        max_in_flight=max_in_flight,
    )
    nsq.run()


def ansq(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    import asyncio

    from ansq import create_reader

    async def handle(message: Any) -> None:
        note(message.body)
        await asyncio.sleep(pause)
        await message.fin()

    async def main() -> None:
        reader = await create_reader(topic=topic, channel=CHANNEL, nsqd_tcp_addresses=[address])
        for connection in reader.connections:
            await connection.rdy(max_in_flight)
        tasks = set()
        async for message in reader.messages():
            if pause:
                task = asyncio.create_task(handle(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            else:
                note(message.body)
                await message.fin()

    asyncio.run(main())


def nsq_py(address: str, topic: str, max_in_flight: int, note: Note, pause: float) -> None:
    from nsq.reader import Reader

    reader = Reader(topic.encode(), CHANNEL.encode(), nsqd_tcp_addresses=[address], max_in_flight=max_in_flight)
    for message in reader:
        note(message.body)
        if pause:
            time.sleep(pause)
        message.fin()


CONSUMERS: dict[str, Callable[[str, str, int, Note, float], None]] = {
    "gnsq_like": gnsq_like,
    "gnsq_like, adaptive off": partial(gnsq_like, adaptive_rdy=False),
    "gnsq_like, buffered": partial(gnsq_like, adaptive_rdy=False, output_buffer_timeout=0.25),
    "gnsq_like, Batch": gnsq_like_batches,
    "gnsq_like, pulled": gnsq_like_pulled,
    "bare gevent loop": bare,
    "gnsq": gnsq,
    "pynsq": pynsq,
    "ansq": ansq,
    "nsq-py": nsq_py,
}


def start_script(
    python: str, script: str | Path, *arguments: object, tree: Path | None = None, stderr: bool = False
) -> subprocess.Popen[bytes]:
    """Run a script of this directory in a process of its own.

    :param tree: the checkout whose gnsq_like it imports; None for this one
    :param stderr: whether to collect what it writes there
    """
    return subprocess.Popen(
        [python, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr else None,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(tree or Path(__file__).resolve().parent.parent)},
    )
