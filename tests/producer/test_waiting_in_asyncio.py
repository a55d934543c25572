"""Publishing from an asyncio event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import InvalidBody, NotSent, OutcomeUnknown, PublishRefused
from tests.support.daemons import running_nsqd, wait_for
from tests.support.peer import PATIENCE, Peer, ScriptedNsqd
from tests.support.scripts import run_script


@pytest.fixture
def producer(nsqd: ScriptedNsqd) -> Iterator[Producer]:
    with Producer(nsqd.address, own_thread=True, timeout=PATIENCE) as made:
        yield made
        made.close(0)


def in_loop(main: Callable[[], Awaitable[object]]) -> gevent.Greenlet:
    """Run an event loop in a thread, beside the scripted nsqd."""
    result: gevent.Greenlet = gevent.get_hub().threadpool.spawn(lambda: asyncio.run(main()))  # type: ignore[arg-type]
    return result


def accepted(nsqd: ScriptedNsqd) -> Peer:
    peer = nsqd.accept()
    peer.identify(version="1.3.0")
    return peer


def test_many_tasks_publish_at_once() -> None:
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address, own_thread=True) as producer:

        async def main() -> None:
            await asyncio.gather(*(producer.apublish("t", b"%d" % number) for number in range(500)))

        in_loop(main).get(timeout=PATIENCE)
        assert producer.stats()["confirmed"] == 500


def test_the_loop_goes_on_while_nsqd_does_not_answer(nsqd: ScriptedNsqd, producer: Producer) -> None:
    went_on: list[str] = []

    async def main() -> None:
        call = asyncio.create_task(producer.apublish("t", b"x"))
        await asyncio.sleep(0)
        went_on.append("the loop")
        await call
        went_on.append("the publish")

    loop = in_loop(main)
    peer = accepted(nsqd)
    assert peer.line() == b"PUB t"
    assert peer.body() == b"x"
    wait_for(lambda: went_on, "the loop")
    assert went_on == ["the loop"]
    peer.send(b"\0\0\0\6\0\0\0\0OK")
    loop.get(timeout=PATIENCE)
    assert went_on == ["the loop", "the publish"]


def test_errors_are_those_of_publish(nsqd: ScriptedNsqd, producer: Producer) -> None:
    async def main() -> None:
        with pytest.raises(InvalidBody):
            await producer.apublish("t", "text")  # type: ignore[arg-type]
        with pytest.raises(OutcomeUnknown):
            await producer.apublish("t", b"lost")
        with pytest.raises(PublishRefused):
            await producer.apublish("t", b"refused")

    loop = in_loop(main)
    peer = accepted(nsqd)
    peer.line()
    assert peer.body() == b"lost"
    peer.close()
    peer = accepted(nsqd)
    peer.line()
    assert peer.body() == b"refused"
    peer.error("E_BAD_TOPIC no")
    loop.get(timeout=PATIENCE)


def test_a_cancelled_publish_that_is_not_sent_is_never_sent(nsqd: ScriptedNsqd, producer: Producer) -> None:
    cancelled: list[bool] = []

    async def main() -> None:
        call = asyncio.create_task(producer.apublish("t", b"cancelled"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled.append(True)
        await producer.apublish("t", b"next")

    loop = in_loop(main)
    wait_for(lambda: cancelled, "the cancelling")
    peer = accepted(nsqd)
    peer.line()
    assert peer.body() == b"next"
    peer.send(b"\0\0\0\6\0\0\0\0OK")
    loop.get(timeout=PATIENCE)


def test_cancelling_one_that_was_sent_leaves_the_connection_in_order(nsqd: ScriptedNsqd, producer: Producer) -> None:
    was_sent: list[bool] = []

    async def main() -> None:
        call = asyncio.create_task(producer.apublish("t", b"cancelled"))
        while not was_sent:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await producer.apublish("t", b"next")

    loop = in_loop(main)
    peer = accepted(nsqd)
    peer.line()
    assert peer.body() == b"cancelled"
    was_sent.append(True)
    peer.line()
    assert peer.body() == b"next"
    peer.send(b"\0\0\0\6\0\0\0\0OK" * 2)
    loop.get(timeout=PATIENCE)
    assert producer.stats()["confirmed"] == 2  # the cancelled one, too: nsqd has it


def test_an_nsqd_that_is_away() -> None:
    with Producer("127.0.0.1:1", own_thread=True, fail_fast=True) as away:

        async def main() -> None:
            with pytest.raises(NotSent):
                await away.apublish("t", b"x")

        in_loop(main).get(timeout=PATIENCE)


def test_connections_in_the_thread_of_the_loop_are_refused(nsqd: ScriptedNsqd) -> None:
    lines = run_script(
        """
        import asyncio, sys
        from gnsq_like import Producer
        from gnsq_like.errors import InvalidOption

        producer = Producer(sys.argv[1], own_thread=False)
        try:
            asyncio.run(producer.apublish("t", b"x"))
        except InvalidOption as exc:
            print(exc.option)
        """,
        nsqd.address,
    )
    assert lines == ["own_thread"]


def test_in_a_patched_process() -> None:
    with running_nsqd("process") as nsqd:
        lines = run_script(
            """
            from gevent import monkey
            monkey.patch_all()
            import asyncio, sys
            from gnsq_like import Producer

            async def main():
                await asyncio.gather(*(producer.apublish("t", b"x") for _ in range(20)))

            with Producer(sys.argv[1], timeout=30) as producer:
                asyncio.run(main())
                print(producer.stats()["confirmed"])
            """,
            nsqd.tcp_address,
        )
    assert lines == ["20"]


def test_in_a_greenlet_of_a_patched_process_it_is_refused_even_if_it_is_alone() -> None:
    """asyncio itself refuses all concurrent loops but the first: what always fails is seen before it is in use."""
    with running_nsqd("process") as nsqd:
        lines = run_script(
            """
            from gevent import monkey
            monkey.patch_all()
            import asyncio, sys
            import gevent
            from gnsq_like import Producer
            from gnsq_like.errors import UsageError

            def view():
                try:
                    asyncio.run(producer.apublish("t", b"x"))
                except UsageError as exc:
                    return str(exc)

            with Producer(sys.argv[1], timeout=30) as producer:
                print(gevent.spawn(view).get())
                print(producer.stats()["confirmed"])
            """,
            nsqd.tcp_address,
        )
    refusal, confirmed = lines
    assert "call publish() in a plain function" in refusal
    assert confirmed == "0"


def test_importing_gnsq_like_loads_no_asyncio() -> None:
    lines = run_script(
        """
        import sys
        from gnsq_like import Producer, Reader
        Producer("127.0.0.1:4150")
        print("asyncio" in sys.modules)
        """
    )
    assert lines == ["False"]
