"""The daemons and the ways to them, and how each fault is done to them.

::

    clients ── link 0 ── nsqd 0 ──┐
            ── link 1 ── nsqd 1 ──┼─ nsqlookupd
            ── link 2 ── nsqd 2 ──┘
            ── a proxy ── nsqlookupd's HTTP
            ── the liar

nsqds are processes, with mem-queue-size 0; the links are fault proxies in this process, whose observers see all that
passes. nsqds announce the ports of their links. Our nsqlookupd runs in this process, because its clock is moved; a
real one is a process.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import gevent

from gnsq_like import NsqdHTTPClient
from gnsq_like.errors import HTTPError
from gnsq_like.server import Nsqd, NsqdOptions
from gnsq_like.testing import Clock, FaultProxy, RunningNsqlookupd, running_nsqlookupd
from gnsq_like.testing.daemons import make_daemon
from tests.faults.client_run import CHANNEL, TOPIC
from tests.faults.liar import Liar
from tests.faults.resources import sockets
from tests.faults.schedule import Fault
from tests.faults.tap import Tap, Wire
from tests.support.daemons import Process, Running
from tests.support.processes import limited, no_descriptors, stopped

#: Seconds by which nsqlookupd's clock is moved at most: beyond what makes an nsqd inactive.
_CLOCK_JUMP = 1000.0
#: Seconds for an nsqd to end after SIGTERM, on a busy machine.
_END_TIMEOUT = 180.0
#: Seconds for one to start, on a machine that does much else: Python needs a second of its time.
_START_TIMEOUT = 120.0


class _JumpingClock(Clock):
    """A wall clock that goes on, and can be moved."""

    jump = 0.0

    def wall(self) -> float:
        return time.time() + self.jump


class Address:
    """Of a link; for the liar's list."""

    def __init__(self, address: str) -> None:
        self.address = address


class Stage:
    """Everything but the clients.

    :param nsq: "ours" or "real"
    :param wire: is told what passes
    """

    def __init__(self, nsq: str, wire: Wire, nsqds: int, msg_timeout: float) -> None:
        self._nsq = nsq
        self._wire = wire
        self._count = nsqds
        self._msg_timeout = msg_timeout
        self._cleanup = ExitStack()
        self._clock = _JumpingClock()
        self.directory = Path()
        self.nsqds: list[Process] = []
        self.links: list[FaultProxy] = []
        self.liar = Liar()
        #: What nsqds should not have logged.
        self.bad_logs: list[str] = []
        self.lookupd: RunningNsqlookupd
        self.lookupd_link: FaultProxy

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            memory = Path("/dev/shm")
            home = memory if os.access(memory, os.W_OK) else None
            # An nsqd that hangs gets SIGABRT, and then its log has its stack.
            before = os.environ.get("PYTHONFAULTHANDLER")
            os.environ["PYTHONFAULTHANDLER"] = "1"
            cleanup.callback(_set_environment, "PYTHONFAULTHANDLER", before)
            self.directory = Path(tempfile.mkdtemp(prefix="gnsq_like-faults-", dir=home))
            cleanup.callback(shutil.rmtree, self.directory)
            if self._nsq == "ours":
                self.lookupd = running_nsqlookupd(kind="hub", clock=self._clock)
            else:
                self.lookupd = running_nsqlookupd(kind="real")
            cleanup.enter_context(self.lookupd)
            self.lookupd_link = cleanup.enter_context(FaultProxy(self.lookupd.http_address, own_thread=False))
            for number in range(self._count):
                self._add_nsqd(cleanup, number)
            self.liar.nsqds = [Address(link.address) for link in self.links]
            cleanup.enter_context(self.liar)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _add_nsqd(self, cleanup: ExitStack, number: int) -> None:
        link = cleanup.enter_context(FaultProxy(own_thread=False, observer=Tap(number, self._wire, time.monotonic)))
        data = self.directory / f"nsqd{number}"
        data.mkdir()
        options: dict[str, Any] = {
            "node_id": number,
            "data_path": str(data),
            "mem_queue_size": 0,
            "msg_timeout": self._msg_timeout,
            "broadcast_address": "127.0.0.1",
            "broadcast_tcp_port": link.port,
            "lookupd_tcp_addresses": [self.lookupd.tcp_address],
        }
        if self._nsq == "real":
            options["sync_every"] = 1  # what its metadata does not list is lost by a kill
        nsqd = make_daemon("process" if self._nsq == "ours" else "real", Nsqd, NsqdOptions, options)
        assert isinstance(nsqd, Process)
        cleanup.callback(nsqd.close)
        nsqd.start_timeout = _START_TIMEOUT
        nsqd.start()
        link.target = nsqd.tcp_address
        with NsqdHTTPClient(nsqd.http_address) as http:
            http.create_topic(TOPIC)
            http.create_channel(TOPIC, CHANNEL)
        self.lookupd.wait_for_nsqd(link.port)
        self.nsqds.append(nsqd)
        self.links.append(link)

    # -- looking -------------------------------------------------------------------------------------

    @property
    def lookupd_http_addresses(self) -> list[str]:
        return [self.lookupd_link.address, self.liar.address]

    def left(self) -> dict[str, int] | None:
        """What the channels hold, over all nsqds; None while an nsqd does not answer."""
        total = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
        for nsqd in self.nsqds:
            try:
                with NsqdHTTPClient(nsqd.http_address, timeout=5) as http:
                    stats = http.stats(topic=TOPIC, include_mem=False, include_clients=False)
            except HTTPError:
                return None
            for topic in stats["topics"]:
                total["depth"] += topic["depth"]
                for channel in topic["channels"]:
                    for name in total:
                        total[name] += channel[name]
        return total

    def sockets(self) -> list[list[str]]:
        """The open sockets of each nsqd."""
        return [sockets(_pid(nsqd)) for nsqd in self.nsqds if nsqd.is_running]

    def look_at_log(self, nsqd: Process) -> None:
        """Keep what should not be in a log; before the nsqd is started again, and in the end."""
        log = nsqd.log
        for word in ("Traceback", "panic:"):
            if word in log:
                self.bad_logs.append(f"an nsqd logged: {log[log.index(word) :][:3000]}")

    # -- faults --------------------------------------------------------------------------------------

    def do(self, fault: Fault, killed: Callable[[int], None]) -> None:
        """Do a fault to an nsqd, a link, the nsqlookupd or the liar, and undo it when it is over. Switches.

        :param killed: called when an nsqd has been killed
        """
        during: AbstractContextManager[None]
        if fault.sort == "nsqd":
            during = self._nsqd(fault, killed)
        elif fault.sort == "link":
            during = self._link(fault)
        elif fault.sort == "lookupd":
            during = self._lookupd(fault)
        else:
            during = self.liar.lying(fault.kind)
        with during:
            gevent.sleep(fault.lasts)

    @contextmanager
    def _nsqd(self, fault: Fault, killed: Callable[[int], None]) -> Iterator[None]:
        nsqd = self.nsqds[fault.target]
        if fault.kind in ("kill", "restart"):
            if fault.kind == "kill":
                nsqd.process.signal(signal.SIGKILL)  # type: ignore[union-attr]
                killed(fault.target)
                nsqd.kill()
            else:
                self._terminate(nsqd)
            self.look_at_log(nsqd)
            yield
            nsqd.start()
        elif fault.kind == "stop":
            with stopped(_pid(nsqd)):
                yield
        elif fault.kind == "no descriptors":
            with no_descriptors(_pid(nsqd)):
                yield
        elif fault.kind == "full disk":
            data = self.directory / f"nsqd{fault.target}"
            largest = max((path.stat().st_size for path in data.glob("*.dat")), default=0)
            with limited(_pid(nsqd), resource.RLIMIT_FSIZE, largest + int(fault.draw * 5000)):
                yield

    @staticmethod
    def _terminate(nsqd: Process) -> None:
        """SIGTERM; one that does not end shows where it is, and is killed."""
        assert nsqd.process is not None
        nsqd.process.signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_TIMEOUT
        while nsqd.is_running and time.monotonic() < deadline:
            gevent.sleep(0.02)
        hangs = nsqd.is_running
        if hangs:
            nsqd.process.signal(signal.SIGABRT)
        status = nsqd.process.status
        nsqd.stop()
        if hangs or status:
            raise AssertionError(f"nsqd ended with {nsqd.process.status} after SIGTERM: {nsqd.log[-6000:]}")

    @contextmanager
    def _link(self, fault: Fault) -> Iterator[None]:
        link = self.links[fault.target]
        direction = link.to_client if fault.draw < 0.5 else link.to_server
        offset = 10 + int(fault.draw * 2 % 1 * 3000)
        if fault.kind == "delay":
            link.delay = 0.02 + fault.draw / 2
        elif fault.kind == "slow":
            link.to_client.bytes_per_second = link.to_server.bytes_per_second = 2000 + fault.draw * 20_000
        elif fault.kind == "mute":
            for each in [direction] if fault.draw * 3 % 1 < 0.6 else [link.to_client, link.to_server]:
                each.freeze()
        elif fault.kind == "refuse":
            link.accepting = False
            link.cut()
        elif fault.kind == "cut inside":
            direction.cut_at(offset, every=True)
            link.cut()
        elif fault.kind == "reset inside":
            direction.reset_at(offset, every=True)
            link.reset()
        elif fault.kind == "garble":
            link.to_client.corrupt_at(0)
            link.cut()
        elif fault.kind == "resets":
            resets = gevent.spawn(_reset_again_and_again, link, random.Random(fault.draw))
            yield
            resets.kill()
            return
        elif fault.kind in ("cut", "reset"):
            getattr(link, fault.kind)()
        else:
            getattr(link, fault.kind.replace(" ", "_"))()
        yield
        link.clear()

    @contextmanager
    def _lookupd(self, fault: Fault) -> Iterator[None]:
        link = self.lookupd_link
        if fault.kind == "kill":
            self.lookupd.kill()
            link.cut()
            yield
            self.lookupd.start()
        elif fault.kind == "clock":
            self._clock.jump = (2 * fault.draw - 1) * _CLOCK_JUMP
            yield
            self._clock.jump = 0.0
        else:
            if fault.kind == "mute":
                link.freeze()
            else:
                link.accepting = False
                link.reset()
            yield
            link.clear()


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


def _reset_again_and_again(link: FaultProxy, draw: random.Random) -> None:
    while True:
        link.reset()
        gevent.sleep(draw.uniform(0.01, 0.1))


def _pid(daemon: Running) -> int:
    assert isinstance(daemon, Process) and daemon.process is not None
    return daemon.process.pid
