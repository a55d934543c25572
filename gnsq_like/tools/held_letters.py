"""Dead letters that are held: published again, dropped or given back, one by one.

They are in flight from a durable channel, and nothing is finished before the user says so: a letter that is neither
replayed nor dropped is given back, and after a crash nsqd delivers it again. Used by ``gnsq-like dlq`` and the admin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnsq_like import Message
from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.errors import NSQError, UsageError

#: The channel; a topic without any gives its backlog to it.
CHANNEL = "dead-letters"
#: Options of a Reader that holds letters: as often as it takes, and without pauses.
READER_OPTIONS: Mapping[str, object] = {"max_attempts": 0, "max_backoff_duration": 0}


class CannotReplay(NSQError):
    """A letter that is not held any more, or cannot be published again; the text is for the user."""


def read_letter(message: Message) -> DeadLetter | None:
    """The envelope in a message; None if it is none."""
    try:
        letter = open_envelope(message.body)
    except UsageError:
        return None
    texts = (letter.topic, letter.channel, letter.reason, letter.error_type, letter.error_text, letter.error_place)
    numbers = (letter.attempts, letter.timestamp_ns, letter.given_up_ns)
    is_one = all(isinstance(each, str) for each in texts) and all(isinstance(each, int) for each in numbers)
    return letter if is_one else None  # anybody may have published it


def name_of(message: Message) -> str:
    """A letter's name: ids alone collide between nsqds."""
    return f"{message.nsqd_address}/{message.id}"


class HeldLetters:
    """Letters in flight."""

    def __init__(self) -> None:
        #: By name.
        self.held: dict[str, Message] = {}
        self._released = False

    def hold(self, message: Message) -> None:
        """A Reader's handler. Keeps the message until nsqd's max-msg-timeout at most. Never switches."""
        if self._released:
            message.requeue(delay=0, backoff=False)
            return
        message.enable_async()
        message.touch_until_answered()
        self.held[name_of(message)] = message

    def replay(self, name: str, publish: Callable[[str, bytes], object], topic: str | None = None) -> str:
        """Publish a letter, then finish it; if it cannot be published, it is held again. May switch.

        :param publish: is called with topic and body; returns when nsqd has confirmed the message, or raises
        :param topic: where to; None for the topic that it came from
        :returns: that topic
        :raises CannotReplay: it is not held, or it is no envelope and there is no topic
        """
        message = self._take(name)  # taken out, so that two clicks do not publish it twice
        try:
            found = read_letter(message)
            if topic is None and found is None:
                raise CannotReplay("it is no envelope, so nobody knows where it came from")
            to = topic or (found.topic if found else "")
            if to == message.topic:
                raise CannotReplay("it came from this topic itself")
            publish(to, found.body if found else message.body)
        except BaseException:
            self.hold(message)
            raise
        message.finish()
        return to

    def drop(self, name: str) -> None:
        """Finish a letter. Never switches. Raises CannotReplay."""
        self._take(name).finish()

    def _take(self, name: str) -> Message:
        message = self.held.pop(name, None)
        if message is None:
            raise CannotReplay("the letter is not held any more; read again")
        return message

    def release(self) -> None:
        """Give all back, also those that come later. Pause the Readers before. Never switches."""
        self._released = True
        for message in self.held.values():
            message.requeue(delay=0, backoff=False)
        self.held.clear()
