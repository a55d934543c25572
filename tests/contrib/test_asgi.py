"""The lifespan of an ASGI application with Readers; real Readers, and the messages that a server sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.contrib.asgi import consuming, with_readers
from gnsq_like.errors import InvalidOption
from tests.support.daemons import running_nsqd

PATIENCE = 60


def in_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an event loop in a thread, beside the nsqd in this one."""
    gevent.get_hub().threadpool.spawn(lambda: asyncio.run(main())).get(timeout=PATIENCE)


async def answered(application: Any, received: list[str]) -> list[str]:
    """What an application sends in its lifespan when the server sends these."""
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": received.pop(0)}

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"] + message.get("message", ""))

    await application({"type": "lifespan"}, receive, send)
    return sent


async def inner(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http", "an application without a lifespan is not told of one"
    await send({"type": "answer"})


def test_readers_run_while_the_block_does() -> None:
    bodies: list[bytes] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        came = asyncio.Event()

        async def main() -> None:
            loop = asyncio.get_running_loop()

            def handler(message: Message) -> None:
                bodies.append(message.body)
                loop.call_soon_threadsafe(came.set)

            reader = Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address)
            async with consuming(lambda: [reader]):
                await came.wait()
            assert reader.stats()["state"] == "stopped"

        in_loop(main)
    assert bodies == [b"x"]


def test_the_lifespan_of_an_application() -> None:
    readers: list[Reader] = []

    def make_readers() -> list[Reader]:
        readers.append(Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1"))
        return readers

    async def main() -> None:
        sent = await answered(with_readers(inner, make_readers), ["lifespan.startup", "lifespan.shutdown"])
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    in_loop(main)
    assert readers[0].stats()["state"] == "stopped"


@pytest.mark.parametrize("source", ["tests.support.no_such_module", "tests.support.clicks_app:nothing"])
def test_readers_that_cannot_be_made_keep_the_server_from_starting(source: str) -> None:
    async def main() -> None:
        [sent] = await answered(with_readers(inner, source), ["lifespan.startup"])
        assert sent.startswith("lifespan.startup.failed" + "the readers cannot be started: ")

    in_loop(main)


def test_what_is_no_lifespan_is_the_applications() -> None:
    async def main() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await with_readers(inner, "nowhere")({"type": "http"}, None, send)  # type: ignore[arg-type]
        assert sent == [{"type": "answer"}]

    in_loop(main)


def test_what_is_no_reader() -> None:
    async def main() -> None:
        with pytest.raises(InvalidOption, match="readers"):
            async with consuming(lambda: [print]):  # type: ignore[list-item]
                raise AssertionError

    in_loop(main)
