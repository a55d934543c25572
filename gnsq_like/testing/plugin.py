"""The pytest plugin: installing gnsq_like installs it (entry point ``pytest11``).

It is loaded in every pytest run where gnsq_like is installed. So nothing here imports gevent or the rest of the kit
before a fixture is used, and nothing is ever monkey-patched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from gnsq_like.testing import Clock, FaultProxy, RunningCluster, RunningNsqd, RunningNsqlookupd

KINDS = ("auto", "thread", "hub", "process", "real")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nsq", "NSQ's daemons for tests (gnsq_like)")
    group.addoption(
        "--nsq",
        choices=KINDS,
        default=None,
        help="the daemons that the fixtures start: gnsq_like's in this process (thread or hub; auto chooses) or as "
        "processes, or the real nsqd and nsqlookupd",
    )
    group.addoption(
        "--nsq-bin", metavar="DIR", default=None, help="directory of the real nsqd and nsqlookupd, if not on PATH"
    )
    parser.addini("nsq", "the same as --nsq", default="auto")
    parser.addini("nsq_bin", "the same as --nsq-bin", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "nsqd(**options): options of the nsqds started by this test's fixtures (gnsq_like)"
    )
    config.addinivalue_line("markers", "nsqlookupd(**options): the same for nsqlookupds (gnsq_like)")
    kind = config.getini("nsq")
    if kind not in KINDS:
        raise pytest.UsageError(f"nsq = {kind}: it must be one of {', '.join(KINDS)}")


def _options(request: pytest.FixtureRequest, marker: str) -> dict[str, object]:
    """The options in markers; the one nearest to the test wins."""
    options: dict[str, object] = {}
    for mark in reversed(list(request.node.iter_markers(marker))):
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.{marker} takes options by name, as in {marker}(msg_timeout=1)")
        options |= mark.kwargs
    return options


def _kind(request: pytest.FixtureRequest) -> Any:
    config = request.config
    kind = config.getoption("--nsq") or config.getini("nsq")
    if kind == "process":
        from gnsq_like.testing.kinds import why_no_process

        if problem := why_no_process():
            _fail(f"--nsq=process: {problem}")
    return None if kind == "auto" else kind


def _fail(sentence: str) -> NoReturn:
    """Fail without a traceback: the command line or the machine is at fault."""
    pytest.fail(sentence, pytrace=False)


def _command(request: pytest.FixtureRequest, name: str) -> str:
    """The path of the real one; empty to find it on PATH."""
    directory = request.config.getoption("--nsq-bin") or request.config.getini("nsq_bin")
    if not directory:
        if _kind(request) == "real" and shutil.which(name) is None:
            _fail(f"--nsq=real: there is no {name} on PATH")
        return ""
    path = os.path.join(request.config.rootpath, directory, name)
    if not os.path.exists(path):
        _fail(f"there is no {name} in {directory} (--nsq-bin)")
    return path


def _clock(request: pytest.FixtureRequest) -> Clock | None:
    """The clock, if the test uses it."""
    if "nsq_clock" not in request.fixturenames:
        return None
    clock: Clock = request.getfixturevalue("nsq_clock")
    return clock


@pytest.fixture
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[RunningNsqlookupd]:
    """A nsqlookupd on free ports, new for each test (gnsq_like). Options: @pytest.mark.nsqlookupd(...)."""
    from gnsq_like.testing import running_nsqlookupd

    options = _options(request, "nsqlookupd")
    command = _command(request, "nsqlookupd")
    with running_nsqlookupd(kind=_kind(request), clock=_clock(request), command=command, **options) as running:
        yield running


@pytest.fixture
def nsqd(request: pytest.FixtureRequest) -> Iterator[RunningNsqd]:
    """An nsqd on free ports, new for each test (gnsq_like). Options: @pytest.mark.nsqd(msg_timeout=1).

    If the test also has the fixture ``nsqlookupd``, it is registered there.
    """
    from gnsq_like.testing import running_nsqd

    options: dict[str, Any] = {}
    if "nsqlookupd" in request.fixturenames:
        options["lookupds"] = request.getfixturevalue("nsqlookupd")
    options |= _options(request, "nsqd")
    command = _command(request, "nsqd")
    with running_nsqd(kind=_kind(request), clock=_clock(request), command=command, **options) as running:
        yield running


@pytest.fixture
def nsq_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., RunningCluster]]:
    """nsq_cluster(nsqds=2, lookupds=1, **options): starts nsqds that are registered with nsqlookupds (gnsq_like).

    The markers nsqd and nsqlookupd give options to all of them; those of the call override them.
    """
    from gnsq_like.testing import running_cluster

    with ExitStack() as running:

        def start(nsqds: int = 2, lookupds: int = 1, **options: object) -> RunningCluster:
            arguments: dict[str, Any] = {
                "kind": _kind(request),
                "clock": _clock(request),
                "nsqd_command": _command(request, "nsqd"),
                "nsqlookupd_command": _command(request, "nsqlookupd"),
                "lookupd_options": _options(request, "nsqlookupd"),
                **_options(request, "nsqd"),
            }
            return running.enter_context(running_cluster(nsqds, lookupds, **arguments | options))

        yield start


@pytest.fixture
def nsq_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """nsq_proxy(nsqd): a FaultProxy in front of an nsqd or of any "host:port" (gnsq_like)."""
    from gnsq_like.testing import FaultProxy

    with ExitStack() as running:

        def start(target: Any = "", **arguments: Any) -> FaultProxy:
            address = target if isinstance(target, str) else target.tcp_address
            return running.enter_context(FaultProxy(address, **arguments))

        yield start


@pytest.fixture
def nsq_clock(request: pytest.FixtureRequest) -> Clock:
    """The time of this test's daemons, which stands still until clock.advance(seconds) (gnsq_like).

    Daemons that are processes follow real time: then the test is skipped.
    """
    if _kind(request) in ("process", "real"):
        pytest.skip(f"--nsq={_kind(request)}: its clock cannot be moved")
    from gnsq_like.testing import Clock

    return Clock()
