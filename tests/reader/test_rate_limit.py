"""rate_limit on the wire: messages and RDY commands are counted by a proxy, with our nsqd and a real one."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.errors import InvalidOption
from gnsq_like.testing import FaultProxy
from gnsq_like.wire.frames import FrameDecoder
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.peer import ScriptedNsqd, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, ignore, reading, serve, until


class Counting:
    """A proxy's observer: when messages were sent to the client, and when it sent RDY."""

    def __init__(self) -> None:
        self.messages: list[float] = []
        self.commands: list[float] = []
        self._decoders: dict[int, FrameDecoder] = {}

    def __call__(self, number: int, where: str, data: bytes) -> None:
        now = time.monotonic()
        if where == "to client":
            decoder = self._decoders.setdefault(number, FrameDecoder())
            count = sum(len(each) for each in decoder.feed(data) if isinstance(each, list))
            self.messages += [now] * count
        elif where == "from client":
            self.commands += [now] * sum(line.startswith(b"RDY ") for line in data.split(b"\n"))


@contextlib.contextmanager
def consuming(kind: Any, rate: float | None, nsqds: int, backlog: int, **options: Any) -> Iterator[tuple[Reader, Any]]:
    """A Reader on nsqds with a backlog each, and the count of what passes."""
    counting = Counting()
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(nsqds):
            nsqd = stack.enter_context(running_nsqd(kind, node_id=number))
            with Producer(nsqd.tcp_address) as producer:
                for _ in range(0, backlog, 1000):
                    producer.multi_publish("t", [b"x"] * min(backlog, 1000))
            own = Counting()  # a connection's number is unique for its proxy only
            own.messages, own.commands = counting.messages, counting.commands
            addresses.append(stack.enter_context(FaultProxy(nsqd.tcp_address, observer=own)).address)
        given = {"max_in_flight": 200, "rate_limit": rate, **options}
        yield stack.enter_context(Reader("t", "c", ignore, nsqd_tcp_addresses=addresses, **given)), counting


def most_within(times: list[float], seconds: float) -> int:
    return max((bisect_right(times, began + seconds) - index for index, began in enumerate(times)), default=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "nsqds"), [(10, 1), (100, 4), (2000, 1)])
def test_no_more_messages_and_commands_than_allowed(kind: Any, rate: int, nsqds: int) -> None:
    with consuming(kind, rate, nsqds, 2 * rate + 1000) as (_, counting):
        wait_for(lambda: len(counting.messages) >= 2 * rate + 5, timeout=60)
        messages, commands = sorted(counting.messages), sorted(counting.commands)
    for seconds in (0.0, 0.1, 1.0):
        # What was sent to the client at its own pace may arrive together: a tenth of a second more.
        assert most_within(messages, seconds) <= rate * (seconds + 1.1) + 1
    # Commands that left the client within a second may be seen closer together.
    assert most_within(commands, 0.9) <= 20


@pytest.mark.parametrize(
    ("answer", "line"),
    [(Message.finish, b"FIN " + ID % 1), (lambda message: message.requeue(0, backoff=False), b"REQ " + ID % 1 + b" 0")],
    ids=["finish", "requeue"],
)
def test_nothing_waits_here_for_its_token(nsqd: ScriptedNsqd, answer: Any, line: bytes) -> None:
    """nsqd may send only what has a token: RDY 0 leaves before the answer that would bring another message."""
    with reading([nsqd], answer, rate_limit=0.001, max_in_flight=5):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        assert [peer.line(), peer.line()] == [b"RDY 0", line]
        gevent.spawn(answer_cls, peer)


def test_the_limit_may_be_changed_and_taken_away(nsqd: ScriptedNsqd) -> None:
    gate = Gate()
    with reading([nsqd], gate, rate_limit=0.001, max_in_flight=5, adaptive_rdy=False) as reader:
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 1")
        peer.messages(ID % 1)
        wait_for(lambda: gate.inside == 1)
        assert not reader.is_starved  # the next message needs time, and no answer
        assert reader.rate_limit == 0.001
        reader.rate_limit = 1000
        until(peer, b"RDY 5")
        reader.rate_limit = 0.001
        gate.open.set()
        until(peer, b"FIN " + ID % 1)
        reader.rate_limit = None
        until(peer, b"RDY 5")
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan")])
def test_a_wrong_limit_is_refused_and_changes_nothing(value: Any) -> None:
    reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", rate_limit=4)
    with pytest.raises(InvalidOption, match="rate_limit"):
        reader.rate_limit = value
    assert reader.rate_limit == 4


def test_a_backlog_that_fails_backs_off_within_the_limit(nsqd: ScriptedNsqd) -> None:
    def fail(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError("meant")

    with reading([nsqd], fail, rate_limit=1000, backoff_multiplier=0.01, max_in_flight=5) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        assert until(peer, b"REQ")[-2] == b"RDY 0"
        until(peer, b"RDY 1")
        peer.messages(ID % 1, attempts=2)
        until(peer, b"FIN")
        wait_for(lambda: reader.stats()["backoff_level"] == 0)
        gevent.spawn(answer_cls, peer)


def test_a_test_message_waits_for_its_token(nsqd: ScriptedNsqd) -> None:
    def fail(_: Message) -> None:
        raise ValueError("meant")

    began = time.monotonic()
    with reading([nsqd], fail, rate_limit=2, backoff_multiplier=0.001, max_in_flight=5):
        peer = serve(nsqd)
        peer.messages(ID % 1, ID % 2, ID % 3)
        until(peer, b"REQ")
        until(peer, b"RDY 1")
        assert time.monotonic() - began >= 1.49, "four tokens, of which one is there at first"
        gevent.spawn(answer_cls, peer)


def test_a_block_of_backoff_costs_no_cpu_while_there_are_tokens(nsqd: ScriptedNsqd) -> None:
    def fail(_: Message) -> None:
        raise ValueError("meant")

    with reading([nsqd], fail, rate_limit=1000, backoff_multiplier=60, max_in_flight=5):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        until(peer, b"REQ")
        rounds = 0

        def count_round() -> None:
            nonlocal rounds
            rounds += 1

        with gevent.get_hub().loop.prepare() as watcher:
            watcher.start(count_round)
            gevent.sleep(0.5)  # the time in which rounds are counted; on a slow machine there are fewer
        assert rounds < 100  # a timer that is always due makes thousands
        gevent.spawn(answer_cls, peer)


def test_a_test_that_gets_no_message_moves_on_within_the_limit() -> None:
    def fail(_: Message) -> None:
        raise ValueError("meant")

    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading([one, two], fail, rate_limit=1000, backoff_multiplier=0.01, max_in_flight=5),
    ):
        peers = serve(one), serve(two)
        peers[0].messages(ID % 1)
        until(peers[0], b"REQ")
        until(peers[1], b"RDY 0")
        for peer in peers:
            until(peer, b"RDY 1")
        for peer in peers:
            gevent.spawn(answer_cls, peer)


def test_with_a_limit_it_is_starved_when_the_window_is_full(nsqd: ScriptedNsqd) -> None:
    gate = Gate()
    with reading([nsqd], gate, max_in_flight=2, rate_limit=1000, adaptive_rdy=False) as reader:
        peer = serve(nsqd)
        assert not reader.is_starved
        peer.messages(ID % 0, ID % 1)
        wait_for(lambda: reader.is_starved)
        gate.open.set()
        wait_for(lambda: not reader.is_starved)
        gevent.spawn(answer_cls, peer)
