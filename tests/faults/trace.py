"""A file with everything that passed and every fault, from which the history of a message can be read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.files import whole_lines

#: Lines of a history that are shown.
_SHOWN = 80


class Trace:
    """Writes lines: when, what, and the words of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")

    def write(self, what: str, *words: object) -> None:
        if self._file.closed:
            return  # the connections end after it
        text = " ".join(word.decode() if isinstance(word, bytes) else str(word) for word in words)
        self._file.write(f"{time.monotonic():.3f} {what} {text}\n")

    def history(self, number: int, notes: Iterable[Path]) -> list[str]:
        """What happened to a message: on the wire, to the nsqds while it was under way, and what clients noted."""
        self._file.flush()
        lines = [line.split() for line in whole_lines(self._path)]
        deliveries = [words for words in lines if words[1] == "delivered" and words[-1] == str(number)]
        ids = {words[-2] for words in deliveries}
        connections = {tuple(words[2:4]) for words in deliveries}
        found = [words for words in lines if str(number) in words[2:] or ids & set(words)]
        if found:
            begin, end = float(found[0][0]) - 5, float(found[-1][0]) + 5
            nearby = [words for words in lines if begin <= float(words[0]) <= end]
            ends = ("CLS", "client-closed", "server-closed")
            found += [words for words in nearby if words[1] in ends and tuple(words[2:4]) in connections]
            found += [words for words in nearby if words[1] == "fault"]
        texts = [" ".join(words) for words in sorted(found)]
        for path in notes:
            if path.exists():
                noted = [line for line in whole_lines(path) if line.split()[1:2] == [str(number)]]
                texts += [f"{path.name}: {line}" for line in noted]
        return texts[-_SHOWN:]

    def close(self) -> None:
        self._file.close()
