"""The queue of a topic or channel with its disk: where messages go, and what happens when the disk fails."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.message import Message
from gnsq_like.server.broker.queues import OverflowQueue, Queue
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.storage.disk_queue import DiskError, DiskQueue
from tests.support.processes import no_descriptors

#: A client that the broker only passes on.
NOBODY: Any = None

ALL = 1 << 30


class Disk:
    """Makes queues with little memory, and records their reports about the disk."""

    def __init__(self, directory: Path, bound: int = 3) -> None:
        self._directory = directory
        self._bound = bound
        self.problems: list[str] = []

    def make_queue(self, name: str, ephemeral: bool = False) -> OverflowQueue:
        disk = DiskQueue(str(self._directory), name)
        disk.open(path.name for path in self._directory.glob(f"{name}.diskqueue.*"))
        return OverflowQueue(disk, self._bound, self._note, lambda queue: None)

    def _note(self, error: DiskError | None) -> None:
        self.problems.append(str(error or ""))


def no_files() -> AbstractContextManager[None]:
    """No file can be opened."""
    return no_descriptors(os.getpid())


def messages(count: int, first: int = 0) -> list[Message]:
    return [Message(b"%016x" % n, n, b"%d" % n) for n in range(first, first + count)]


def numbers(queue: Queue, count: int = ALL, max_bytes: int = ALL) -> list[int]:
    return [int(message.body) for message in queue.take(count, max_bytes)]


def test_what_comes_while_something_is_on_disk_goes_behind_it(tmp_path: Path) -> None:
    queue = Disk(tmp_path).make_queue("t")
    queue.put(messages(5))
    assert (len(queue), queue.backend_depth) == (5, 2)
    assert numbers(queue, 4) == [0, 1, 2, 3]
    queue.put(messages(1, first=5))
    assert (len(queue), queue.backend_depth) == (2, 2)
    assert numbers(queue) == [4, 5]
    queue.put(messages(3, first=6))
    assert (len(queue), queue.backend_depth) == (3, 0)
    queue.close()


def test_bytes_bound_what_is_taken_of_memory_and_disk_together(tmp_path: Path) -> None:
    queue = Disk(tmp_path).make_queue("t")
    queue.put(messages(8))
    assert [numbers(queue, max_bytes=size) for size in (2, 3, 1, 100)] == [[0, 1], [2, 3, 4], [5], [6, 7]]
    queue.close()


def test_a_refused_put_adds_nothing_and_what_is_kept_waits_behind_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    queue = disk.make_queue("t")
    queue.put(messages(3))
    with no_files():
        with pytest.raises(DiskError, match="too many open files"):
            queue.put(messages(1, first=100))
        assert len(queue) == 3
        queue.keep(messages(2, first=3))
        assert (len(queue), queue.backend_depth) == (5, 0)
        with pytest.raises(DiskError, match="too many open files"):
            queue.settle()
        assert all("too many open files" in problem for problem in disk.problems)
    queue.put(messages(1, first=5))
    assert disk.problems[-1] == ""
    assert queue.backend_depth == 3
    assert numbers(queue) == list(range(6))
    queue.close()


def test_room_in_memory_is_for_nobody_while_others_wait_for_the_disk(tmp_path: Path) -> None:
    queue = Disk(tmp_path, bound=1).make_queue("t")
    queue.put(messages(1))
    with no_files():
        queue.keep(messages(1, first=1))
        assert numbers(queue, 1) == [0]
        queue.keep(messages(1, first=2))
    assert numbers(queue) == [1, 2]
    queue.close()


def test_kept_messages_are_given_out_even_if_the_disk_never_works(tmp_path: Path) -> None:
    queue = Disk(tmp_path, bound=0).make_queue("t")
    with no_files():
        queue.keep(messages(4))
        assert numbers(queue, 3) == [0, 1, 2]
        assert numbers(queue) == [3]


def test_closing_writes_down_memory_and_what_else_there_is(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    queue = disk.make_queue("t")
    queue.put(messages(5))
    queue.close(messages(2, first=5))
    again = disk.make_queue("t")
    assert sorted(numbers(again)) == list(range(7))
    again.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_now_is_delivered_later(tmp_path: Path) -> None:
    disk = Disk(tmp_path, bound=0)
    broker = Broker(NsqdOptions(), make_queue=disk.make_queue)
    consumer = broker.subscribe("t", "c", NOBODY, 60.0, 0, 0.0)
    broker.topic("t").publish([b"a", b"b"], 0.0, 0.0, 1)
    consumer.set_ready(5)
    with no_files():
        assert broker.work(0.0) == []
        assert "too many open files" in disk.problems[-1]
    broker.retry(0.0)
    ((_, delivered),) = broker.work(0.0)
    assert [message.body for message in delivered] == [b"a", b"b"]
