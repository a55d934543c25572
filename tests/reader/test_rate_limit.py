"""rate_limit on the wire: messages and RDY commands are counted by a proxy, with our nsqd and a real one."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from gnsq_like import Message, Reader
from gnsq_like.errors import InvalidOption
from tests.support.daemons import wait_for
from tests.support.peer import ScriptedNsqd, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, reading, serve, until


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
