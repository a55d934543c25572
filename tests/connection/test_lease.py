"""A lease: a thread writes and reads on a connection itself, until its owner takes the connection back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.threadpool import ThreadPool

from gnsq_like.connection.connection import Connection
from gnsq_like.connection.lease import Lease
from gnsq_like.errors import OutcomeUnknown, PublishRefused
from gnsq_like.options import ConnectionOptions
from gnsq_like.runtime.hub_calls import handle_here
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.commands import pub
from tests.support.connected import Watcher, confirmed, connect
from tests.support.daemons import KINDS, Kind, running_nsqd, wait_for
from tests.support.nsqds import answer_one, beat
from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd

PUB = pub("t", b"body")


class Lent:
    """A connection that its first answer lends to a thread of its own; ``publish`` starts a publish there."""

    def __init__(self, connection: Connection, watcher: Watcher, **times: float) -> None:
        self.connection = connection
        self.thread = ThreadPool(1)
        self.reply = PendingReply()
        self._made: list[Lease | None] = []
        self._times = {"quiet": PATIENCE, "patience": PATIENCE, "tick": PATIENCE, **times}
        watcher.at_answers = self._lend

    def _lend(self, connection: Connection) -> None:
        if not self._made:
            self._made.append(connection.lend(0, handle_here(), **self._times))

    @property
    def lease(self) -> Lease:
        wait_for(lambda: bool(self._made), "the offer")
        [lease] = self._made
        assert lease is not None
        return lease

    @property
    def was_refused(self) -> bool:
        wait_for(lambda: bool(self._made), "the offer")
        return self._made == [None]

    def publish(self, command: bytes = PUB) -> Any:
        self.reply = PendingReply()
        return self.thread.spawn(self.lease.publish, command, self.reply)


Make = Callable[..., tuple[Lent, Peer]]


@pytest.fixture
def lent(nsqd: ScriptedNsqd, watcher: Watcher) -> Iterator[Make]:
    """Makes a connection on lease, and its peer; a publish of the owner came before."""
    made: list[Lent] = []

    def make(**times: float) -> tuple[Lent, Peer]:
        connection, peer = connect(nsqd, watcher)
        made.append(Lent(connection, watcher, **times))
        first = connection.publish(PUB)
        answer_one(peer, b"body")
        confirmed(first)
        assert made[-1].lease is connection.lease
        return made[-1], peer

    yield make
    for each in made:
        each.connection.close()
        each.thread.kill()


def goes_on(lent: Lent, peer: Peer) -> None:
    """The owner has the connection, and uses it."""
    wait_for(lambda: lent.connection.lease is None, "the end of the lease")
    assert lent.lease.over.done
    beat(peer)
    following = lent.connection.publish(pub("t", b"following"))
    answer_one(peer, b"following")
    confirmed(following)
    assert lent.connection.unanswered_count == lent.connection.unanswered_bytes == 0


def test_the_borrower_publishes_by_itself(lent: Make, watcher: Watcher) -> None:
    borrowed, peer = lent()
    for number in range(3):
        done = borrowed.publish(pub("t", b"%d" % number))
        answer_one(peer, b"%d" % number)
        assert done.get(timeout=PATIENCE)
        assert (borrowed.reply.done, borrowed.reply.error) == (True, None)
    assert borrowed.connection.lease is borrowed.lease
    assert watcher.answers == 1  # that of the publish before
    assert borrowed.lease.recall()
    goes_on(borrowed, peer)


@pytest.mark.parametrize(
    "pieces",
    [[HEARTBEAT, OK], [HEARTBEAT + OK], [OK + HEARTBEAT], [OK[:5], OK[5:]], [bytes([byte]) for byte in HEARTBEAT + OK]],
    ids=["heartbeat first", "heartbeat and OK", "OK and heartbeat", "half an OK", "byte by byte"],
)
def test_anything_else_than_one_ok_ends_it_and_nothing_is_lost(lent: Make, pieces: list[bytes]) -> None:
    borrowed, peer = lent()
    done = borrowed.publish()
    assert (peer.line(), peer.body()) == (b"PUB t", b"body")
    for piece in pieces:
        peer.send(piece)
        gevent.sleep(0)
    assert done.get(timeout=PATIENCE)
    confirmed(borrowed.reply)
    if HEARTBEAT in b"".join(pieces):
        assert peer.line() == b"NOP"
    else:
        borrowed.lease.recall()  # the halves may have come together
    goes_on(borrowed, peer)


def test_an_error_is_the_publishs_own(lent: Make, watcher: Watcher) -> None:
    borrowed, peer = lent()
    done = borrowed.publish()
    peer.line()
    peer.body()
    peer.error("E_BAD_TOPIC PUB topic name is not valid")
    assert done.get(timeout=PATIENCE)
    with pytest.raises(PublishRefused, match="E_BAD_TOPIC"):
        confirmed(borrowed.reply)
    assert watcher.ended.wait(PATIENCE)
    assert not borrowed.publish().get(timeout=PATIENCE)


def test_a_heartbeat_before_a_publish_is_answered_by_the_owner_before_anything_is_written(
    lent: Make,
) -> None:
    borrowed, peer = lent()
    peer.send(HEARTBEAT)
    # The bytes have come when another thread sees them; nothing here reads.
    raw = borrowed.connection._transport
    assert raw is not None
    wait_for(raw.has_input, "the heartbeat")
    assert not borrowed.publish().get(timeout=PATIENCE)
    assert not borrowed.reply.done
    assert peer.line() == b"NOP"
    goes_on(borrowed, peer)


def test_after_its_patience_the_borrower_gives_back_and_the_owner_reads_the_answer(
    lent: Make,
) -> None:
    borrowed, peer = lent(patience=0.001)
    done = borrowed.publish()
    assert done.get(timeout=PATIENCE)
    wait_for(lambda: borrowed.connection.lease is None, "the end of the lease")
    assert not borrowed.reply.done
    assert borrowed.lease.left is borrowed.reply
    assert borrowed.connection.unanswered_count == 1
    assert borrowed.connection.unanswered_bytes == len(PUB)
    following = borrowed.connection.publish(pub("t", b"second"))
    answer_one(peer, b"body")
    confirmed(borrowed.reply)
    answer_one(peer, b"second")
    confirmed(following)
    goes_on(borrowed, peer)


def test_recalled_during_a_publish_it_ends_after_its_answer(lent: Make) -> None:
    borrowed, peer = lent()
    done = borrowed.publish()
    assert (peer.line(), peer.body()) == (b"PUB t", b"body")
    assert not borrowed.lease.recall()
    assert borrowed.connection.unanswered_count == 1
    peer.send(OK)
    assert done.get(timeout=PATIENCE)
    assert borrowed.reply.done
    goes_on(borrowed, peer)
    assert not borrowed.publish().get(timeout=PATIENCE)


def test_it_ends_by_itself_when_the_borrower_does_nothing(lent: Make) -> None:
    borrowed, peer = lent(tick=0.001)
    goes_on(borrowed, peer)
    assert borrowed.lease.left is None


def test_it_ends_when_the_borrower_is_stuck_in_a_publish(lent: Make) -> None:
    borrowed, peer = lent(patience=2.0)  # more than it takes to get to the second tick
    done = borrowed.publish()
    assert (peer.line(), peer.body()) == (b"PUB t", b"body")
    borrowed.lease._tick()
    assert borrowed.connection.lease is borrowed.lease  # it has just begun
    borrowed.lease._tick()
    assert borrowed.lease.left is borrowed.reply
    peer.send(OK)
    confirmed(borrowed.reply)
    goes_on(borrowed, peer)
    assert done.get(timeout=PATIENCE)


@pytest.mark.parametrize("how", ["closed", "reset", "by its owner"])
def test_a_connection_that_ends_during_a_publish_leaves_its_outcome_unknown(
    lent: Make, watcher: Watcher, how: str
) -> None:
    borrowed, peer = lent(patience=0.2 if how == "by its owner" else PATIENCE)
    done = borrowed.publish()
    assert (peer.line(), peer.body()) == (b"PUB t", b"body")
    end: dict[str, Callable[[], object]] = {
        "closed": peer.close,
        "reset": peer.reset,
        "by its owner": borrowed.connection.close,
    }
    end[how]()
    with pytest.raises(OutcomeUnknown):
        confirmed(borrowed.reply)
    assert done.get(timeout=PATIENCE)
    assert watcher.ended.wait(PATIENCE)
    assert borrowed.connection.unanswered_count == 0


def test_a_connection_that_ended_before_a_publish_is_not_written_to(lent: Make, watcher: Watcher) -> None:
    borrowed, peer = lent()
    peer.close()
    wait_for(borrowed.connection._transport.has_input, "the end")
    assert not borrowed.publish().get(timeout=PATIENCE)
    assert watcher.ended.wait(PATIENCE)
    assert not borrowed.reply.done


def test_a_command_that_the_kernel_takes_in_parts_is_written_to_its_end_by_the_owner(
    lent: Make,
) -> None:
    borrowed, peer = lent()
    body = bytes(12 << 20)  # more than the kernel holds
    done = borrowed.publish(pub("t", body))
    assert done.get(timeout=PATIENCE)
    answer_one(peer, body)
    confirmed(borrowed.reply)
    goes_on(borrowed, peer)


def test_after_silence_the_owner_reads_first(lent: Make) -> None:
    borrowed, _ = lent(quiet=0.0)
    assert not borrowed.publish().get(timeout=PATIENCE)


@pytest.mark.parametrize("unfit", ["an unanswered publish", "half a frame"])
def test_nothing_is_lent_while_anything_is_under_way(nsqd: ScriptedNsqd, unfit: str) -> None:
    watcher = Watcher()
    connection, peer = connect(nsqd, watcher)
    borrowed = Lent(connection, watcher)
    replies = [connection.publish(PUB)]
    if unfit == "an unanswered publish":
        replies.append(connection.publish(PUB))
    answer_one(peer, b"body") if unfit != "half a frame" else peer.send(OK + HEARTBEAT[:5])
    assert borrowed.was_refused
    peer.send(OK if unfit != "half a frame" else HEARTBEAT[5:])
    for reply in replies:
        confirmed(reply)
    assert connection.lease is None
    connection.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", [{"snappy": True}, {"deflate": True}])
def test_a_connection_with_a_codec_is_not_lent(kind: Kind, codec: dict[str, Any]) -> None:
    with running_nsqd(kind) as daemon:
        watcher = Watcher()
        connection = Connection(daemon.tcp_address, ConnectionOptions(**codec), **watcher.callbacks())
        connection.connect()
        borrowed = Lent(connection, watcher)
        confirmed(connection.publish(PUB))
        assert borrowed.was_refused
        confirmed(connection.publish(PUB))
        connection.close()


def test_an_interrupted_publish_is_given_back(lent: Make) -> None:
    """An exception of a signal handler, here in the reply itself, must not keep the connection from its owner."""

    class Interrupting(PendingReply):
        """Raises when the borrower settles it."""

        __slots__ = ()

        def settle(self, error: Exception | None = None) -> None:
            raise KeyboardInterrupt

    borrowed, peer = lent()
    reply = Interrupting()

    def publish() -> str:
        try:
            borrowed.lease.publish(PUB, reply)
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    done = borrowed.thread.spawn(publish)
    answer_one(peer, b"body")
    assert done.get(timeout=PATIENCE) == "interrupted"
    goes_on(borrowed, peer)
