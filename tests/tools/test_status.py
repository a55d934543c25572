"""Lines of status."""

import logging
import re

import pytest

from gnsq_like.tools.status import Statuses


def test_a_line_for_every_so_many_and_for_each_destination(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    statuses = Statuses(100, ["a", "b"])
    for number in range(100):
        statuses.add("a" if number % 2 else "b", 0.001 * (number + 1))
    for _ in range(50):
        statuses.add("a", 1.0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    found = re.fullmatch(r"\[aggregate\]: finished 100 - 99th: (.*)ms - 95th: (.*)ms - avg: (.*)ms", lines[0])
    assert found
    assert [float(each) for each in found.groups()] == pytest.approx([99, 95, 50.5], rel=0.02)
    assert lines[1].startswith("[a]: finished 100 ")
    assert statuses.count == 150


def test_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    statuses = Statuses(0, ["a"])
    statuses.add("a", 1.0)
    assert (caplog.records, statuses.count) == ([], 1)
