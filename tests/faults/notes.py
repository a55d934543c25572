"""The notes of a client: one line each, written at once, so that they outlive a SIGKILL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gnsq_like import Message
from tests.faults.ledger import OUTCOMES, Handling, Ledger
from tests.support.files import whole_lines

_LETTERS = dict(zip("CNRU", OUTCOMES, strict=True))


class Notes:
    """Writes notes. In a forked child, greenlets of the parent that run on write none."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that made it."""
        return os.getpid() == self._pid

    def write(self, *words: object) -> None:
        if self.is_mine:
            os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def publishing(self, number: int, at: float, deadline: float, may_repeat: bool, defer: float) -> None:
        self.write("P", number, at, deadline, int(may_repeat), defer)

    def ended(self, number: int, outcome: str, at: float, code: str = "") -> None:
        [letter] = [each for each, name in _LETTERS.items() if name == outcome]
        self.write(letter, number, at, code)

    def handled(self, number: int, message: Message, *, in_thread: bool) -> None:
        self.write("H", number, message.id, message.attempts, message.answer or "-", int(in_thread))

    def stalled(self, begin: float, end: float) -> None:
        self.write("S", begin, end)

    def unexpected(self, text: str) -> None:
        self.write("E", text.replace("\n", " | "))

    def left(self, resources: dict[str, Any]) -> None:
        self.write("Z", json.dumps(resources))

    def close(self) -> None:
        os.close(self._file)


def read_into(path: Path, client: str, ledger: Ledger) -> tuple[list[str], dict[str, Any] | None]:
    """Tell the ledger what a client noted.

    :returns: the errors it did not expect; and its resources, unless it was killed
    """
    errors: list[str] = []
    resources = None
    if not path.exists():
        return errors, resources
    for line in whole_lines(path):
        letter, _, rest = line.partition(" ")
        words = rest.split(" ")
        if letter == "P":
            at, deadline, may_repeat, defer = map(float, words[1:])
            ledger.publishing(client, int(words[0]), at, deadline, may_repeat=bool(may_repeat), defer=defer)
        elif letter in _LETTERS:
            ledger.ended(int(words[0]), _LETTERS[letter], float(words[1]), words[2])
        elif letter == "H":
            answer = None if words[3] == "-" else words[3]
            message_id, attempts, in_thread = words[1].encode(), int(words[2]), words[4] == "1"
            ledger.handled(Handling(client, int(words[0]), message_id, attempts, answer, in_thread))
        elif letter == "S":
            ledger.stalled(client, float(words[0]), float(words[1]))
        elif letter == "E":
            errors.append(rest)
        elif letter == "Z":
            resources = json.loads(rest)
            ledger.came_to_end(client)
    return errors, resources
