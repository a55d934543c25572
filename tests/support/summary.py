"""The end of a run: what was not run and why, and the seconds of each room. Hooks of pytest, which tests/conftest.py
takes up. With pytest-xdist the processes report what they have left out to the one that prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.progress import Progress

#: Marks of tests that run only when asked for, by -m with the mark's name or by the test's own name, and the target of
#: make that asks for them. One that is marked ``sample`` runs anyway.
ON_REQUEST = {
    "browser": "test-browser",
    "commands": "test-commands",
    "package": "test-package",
    "peers": "test-peers",
    "servers": "test-servers",
    "site": "docs",
    "spark": "test-spark",
    "spark_long": "test-spark",
}

_left_out = pytest.StashKey[Counter[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A target asks for one mark: the files that do not name it need not be imported, by each of its processes.

    :func:`leave_out` fails if a test has the mark and its file does not name it.
    """
    asked = config.getoption("markexpr")
    is_module = asked.isidentifier() and collection_path.match("test_*.py")
    return True if is_module and asked not in collection_path.read_text() else None


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what runs only on request, and was not asked for."""
    asked = config.getoption("markexpr")
    named = [each.rpartition("/")[2] for each in config.args if "::" in each]
    left_out: dict[pytest.Item, str] = {}
    for item in items:
        of_item = [mark for mark in ON_REQUEST if item.get_closest_marker(mark)]
        assert all(mark in item.path.read_text() for mark in of_item), f"{item.nodeid} has a mark of another file"
        marks = [mark for mark in of_item if mark not in asked]
        is_wanted = item.get_closest_marker("sample") or any(each in item.nodeid for each in named)
        if marks and not is_wanted:
            left_out[item] = marks[0]
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    config.stash[_left_out] = Counter(left_out.values())


class _Reports:
    """A plugin in the process that prints: a line on the progress now and then."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._progress = Progress(self._say)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._progress.done(self._session.testscollected)

    def _say(self, line: str) -> None:
        reporter: Any = self._session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write(f"\n{line}\n")  # between the dots


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Reports(session))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(_left_out, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each process has collected everything; one that crashed reports nothing.
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_left_out] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    left_out = config.stash.get(_left_out, Counter())
    if reasons or left_out:
        terminalreporter.section("not run")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5} skipped: {reason}")
        for mark, count in left_out.most_common():
            terminalreporter.line(f"{count:5} of make {ON_REQUEST[mark]} ({mark})")
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.nodeid.partition("::")[0].split("/")[:2])] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("seconds")
        for room, spent in sorted(seconds.items(), key=lambda each: -each[1]):
            terminalreporter.line(f"{spent:7.1f} {room}")
