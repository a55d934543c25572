"""Messages without a connection, and a subscription that notes their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_like import Message
from gnsq_like.reader.message import Outcome

ID = "0123456789abcdef"


class Source:
    """A message's subscription, as the message sees it."""

    alive = True

    def __init__(self, topic: str = "t", channel: str = "c", address: str = "127.0.0.1:4150") -> None:
        self.topic = topic
        self.channel = channel
        self.address = address
        self.msg_timeout = 60.0
        self.max_msg_timeout: float | None = 900.0
        self.decode: Callable[[bytes], Any] | None = None
        #: For each answer its name, the message's id and what else was given.
        self.answers: list[tuple[Any, ...]] = []
        #: What handlers raised.
        self.failures: list[BaseException] = []

    def ids(self, answer: str) -> list[str]:
        """The messages that were answered so, in order."""
        return [message_id for name, message_id, *_ in self.answers if name == answer]

    def finish(self, message: Message, outcome: Outcome = Outcome.HANDLED) -> None:
        message.answer = "FIN"
        name = "finish" if outcome is Outcome.HANDLED else outcome.name
        self.answers.append((name, message.id))

    def drop(self, message: Message) -> None:
        message.answer = "LOST"
        self.answers.append(("drop", message.id))

    def failed(self, message: Message, exc: BaseException) -> None:
        self.failures.append(exc)

    def give_up(self, message: Message, exc: BaseException, backoff: bool) -> bool:
        return False

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.answers.append(("requeue", message.id, delay, backoff))

    def touch(self, message: Message) -> None:
        self.answers.append(("touch", message.id))

    def touch_until_answered(self, message: Message) -> None:
        self.answers.append(("touch_until_answered", message.id))


def make_message(
    body: bytes = b"body",
    message_id: bytes = ID.encode(),
    attempts: int = 1,
    source: Source | None = None,
    received_at: float = 0.0,
) -> Message:
    raw = (1_500_000_000_123_456_789, attempts, message_id, body)
    return Message(raw, Source() if source is None else source, received_at)
