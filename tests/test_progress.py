"""The lines that make test prints while it runs."""

from __future__ import annotations

from tests.support.progress import Progress


def test_a_line_every_ten_seconds_with_target_count_and_seconds() -> None:
    now, lines = 100.0, list[str]()
    progress = Progress(lines.append, target="tests", clock=lambda: now)
    for _ in range(50):
        now += 0.5
        progress.done(5120)
    assert lines == ["make tests: 20 of 5120, 10 s", "make tests: 40 of 5120, 20 s"]


def test_nothing_is_printed_without_make() -> None:
    now, lines = 0.0, list[str]()
    progress = Progress(lines.append, target="", clock=lambda: now)
    for _ in range(5):
        now += 60
        progress.done(5)
    assert lines == []
