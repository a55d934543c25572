"""A started Reader: its statistics, and settings that may be changed at any time, from any thread."""

from __future__ import annotations

import threading
from typing import Any

import gevent
import pytest

from gnsq_like import Batch, Reader
from gnsq_like.errors import NO_DESCRIPTORS, InvalidOption
from gnsq_like.reader.running import NOT_STARTED
from tests.support.daemons import running_nsqd, wait_for
from tests.support.peer import PATIENCE, ScriptedNsqd
from tests.support.reading import ID, answer_cls, ignore, reading, serve, until
from tests.support.scripts import run_script


def here(change: Any) -> None:
    change()


def elsewhere(change: Any) -> None:
    gevent.get_hub().threadpool.apply(change)


def not_started(**options: Any) -> Reader:
    return Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", **options)


@pytest.mark.parametrize("where", [here, elsewhere])
def test_max_in_flight_and_pauses_reach_nsqd(nsqd: ScriptedNsqd, where: Any) -> None:
    with reading([nsqd], max_in_flight=3, adaptive_rdy=False) as reader:
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 3")
        where(lambda: setattr(reader, "max_in_flight", 7))
        assert peer.line() == b"RDY 7"
        where(reader.pause)
        assert peer.line() == b"RDY 0"
        where(reader.resume)
        until(peer, b"RDY 7")
        gevent.spawn(answer_cls, peer)


def test_what_is_set_before_the_start_is_kept(nsqd: ScriptedNsqd) -> None:
    reader = reading([nsqd], adaptive_rdy=False)
    reader.max_in_flight = 5
    assert reader.max_in_flight == 5
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 5")
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("value", [-1, 1.5, None, "5"])
def test_a_wrong_max_in_flight_is_refused_and_changes_nothing(value: Any) -> None:
    reader = not_started(max_in_flight=4)
    with pytest.raises(InvalidOption, match="max_in_flight"):
        reader.max_in_flight = value
    assert reader.max_in_flight == 4


@pytest.mark.parametrize("batched", [False, True])
def test_as_many_are_handled_at_once_as_may_be_in_flight(nsqd: ScriptedNsqd, batched: bool) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)
    handler: Any = Batch(lambda _: both.wait() < 0 or None, size=1) if batched else lambda _: both.wait()
    with reading([nsqd], handler, spawn="thread", max_in_flight=1, adaptive_rdy=False) as reader:
        peer = serve(nsqd)
        reader.max_in_flight = 2
        until(peer, b"RDY 2")
        peer.messages(ID % 0, ID % 1)
        answers: set[bytes] = set()
        while len(answers) < 2:
            if not (line := peer.line()).startswith(b"RDY"):  # lowered before the FIN of a message that took long
                answers.add(line)
        assert answers == {b"FIN " + ID % number for number in range(2)}
        gevent.spawn(answer_cls, peer)


def test_a_reader_has_the_same_statistics_before_its_start_and_after():
    with running_nsqd() as nsqd:
        reader = Reader("t", "c", ignore, nsqd_tcp_addresses=nsqd.tcp_address)
        before = reader.stats()
        assert before.items() >= NOT_STARTED.items()
        with reader:
            wait_for(lambda: reader.stats()["connections"])
            started = reader.stats()
    assert list(started) == list(before) == list(reader.stats())
    assert started["known"] == [nsqd.tcp_address]
    assert started["surveyed"] is True


@pytest.mark.parametrize("where", ["nsqd_tcp_addresses", "lookupd_http_addresses"])
def test_without_descriptors_it_is_not_started_and_may_be_started_later(where: str) -> None:
    """Neither its hub can be made then, nor the HTTP client be loaded, for nsqlookupd."""
    lines = run_script(
        f"""
        import logging, os, sys
        import gevent
        from gnsq_like import Reader, errors
        from tests.support.processes import no_descriptors

        logging.disable(logging.WARNING)
        reader = Reader("t", "c", print, {where}="127.0.0.1:1")
        if {where!r} == "lookupd_http_addresses":
            gevent.sleep(0)  # makes the hub
        with no_descriptors(os.getpid()):
            try:
                reader.start()
            except errors.NSQError as exc:
                print(exc)
        print(reader.stats()["state"])
        reader.start()
        print(reader.stats()["state"])
        reader.stop()
        """
    )
    assert NO_DESCRIPTORS in lines[0]
    assert lines[1:] == ["new", "running"]
