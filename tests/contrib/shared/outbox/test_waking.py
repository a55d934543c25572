"""What ends a relay's wait."""

import os
import threading
import time

import pytest

from gnsq_like.contrib.shared.outbox.waking import Listening, Waiting, wake_all

#: Seconds that nothing here waits for.
LONG = 60.0


def test_a_wake_before_or_during_the_wait_ends_it() -> None:
    waiting = Waiting(lambda: None)
    try:
        wake_all()
        wake_all()
        waiting.wait(LONG)
        thread = threading.Timer(0.05, waiting.wake)
        thread.start()
        waiting.wait(LONG)
        thread.join()
    finally:
        waiting.close()


def test_the_time_ends_it_too() -> None:
    waiting = Waiting(lambda: None)
    began = time.monotonic()
    waiting.wait(0.05)
    assert time.monotonic() - began >= 0.05
    waiting.close()


def test_waking_one_that_is_closed_writes_nothing() -> None:
    waiting = Waiting(lambda: None)
    waiting.close()
    read, write = os.pipe()  # likely to have the same numbers
    try:
        waiting.wake()
        waiting.close()
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        os.close(read)
        os.close(write)


def test_a_full_pipe_does_not_block() -> None:
    waiting = Waiting(lambda: None)
    for _ in range(70_000):
        waiting.wake()
    waiting.wait(LONG)
    waiting.close()


class _Connection:
    """Looks like psycopg 2's, and is a pipe."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.read, self.write = os.pipe()
        self.notifies: list[str] = []
        self.breaks = breaks
        self.polled = 0

    def fileno(self) -> int:
        return self.read

    def poll(self) -> None:
        self.polled += 1
        os.read(self.read, 100)
        if self.breaks:
            raise OSError("gone")

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


def test_a_notification_ends_it() -> None:
    connection = _Connection()
    assert Listening.is_possible(connection)
    waiting = Waiting(lambda: Listening(connection, connection.close))
    waiting.listen()
    os.write(connection.write, b"x")
    waiting.wait(LONG)
    assert connection.polled == 1
    waiting.close()


def test_a_connection_that_breaks_is_made_again_later() -> None:
    made: list[_Connection] = []

    def listen() -> Listening:
        made.append(_Connection(breaks=True))
        return Listening(made[-1], made[-1].close)

    waiting = Waiting(listen)
    waiting.listen()
    os.write(made[0].write, b"x")
    waiting.wait(LONG)
    waiting.wait(0.01)  # not at once, or a broken server would be asked without end
    assert len(made) == 1
    waiting._next_try = 0.0
    waiting.wait(0.01)
    assert len(made) == 2
    waiting.close()


@pytest.mark.parametrize(("failure", "times"), [(None, 1), (OSError("no server"), 2)], ids=["impossible", "failing"])
def test_what_cannot_listen_is_not_asked_again_and_what_fails_to_is(failure: Exception | None, times: int) -> None:
    asked: list[None] = []

    def listen() -> Listening | None:
        asked.append(None)
        if failure is not None:
            raise failure
        return None

    waiting = Waiting(listen)
    waiting.listen()
    waiting._next_try = 0.0
    waiting.wait(0.01)
    assert len(asked) == times
    waiting.close()
