"""A master and a dead-letter nsqd that do not answer are found in a moment."""

from __future__ import annotations

import pytest
from gevent import socket

pytest.importorskip("pyspark")

from gnsq_like.spark.format_options import parse_options
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.reachable import NoDeadLetterNsqd, check_master, check_sink
from gnsq_like.spark.sink import SinkOptions
from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for

#: Nothing listens there.
AWAY = "127.0.0.1:1"


def sink(**given: str) -> SinkOptions:
    return parse_options(SinkOptions, given)


def test_a_master_that_is_away_is_named() -> None:
    with pytest.raises(NotBegun, match=rf"Spark does not start on spark://{AWAY}: {AWAY}: Connection refused"):
        check_master(f"spark://{AWAY}")
    with pytest.raises(NotBegun, match=r"Spark does not start on spark://nowhere: .*nowhere"):
        check_master("spark://nowhere")
    for other in ("local[2]", "yarn", "k8s://https://away.invalid:443"):
        check_master(other)


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://{AWAY},127.0.0.1:{server.getsockname()[1]}")


def test_one_nsqd_of_several_is_enough_for_dead_letters() -> None:
    with pytest.raises(NoDeadLetterNsqd, match=rf"no nsqd takes dead letters: .*{AWAY}.*; .*127\.0\.0\.1:2"):
        check_sink(sink(nsqd_tcp_addresses=f"{AWAY},127.0.0.1:2"))
    with running_nsqd() as nsqd:
        check_sink(sink(nsqd_tcp_addresses=f"{AWAY},{nsqd.tcp_address}"))


def test_the_nsqds_for_dead_letters_are_looked_up() -> None:
    with pytest.raises(NoDeadLetterNsqd, match=f"no nsqd takes dead letters: .*{AWAY}"):
        check_sink(sink(lookupd_http_addresses=AWAY))
    with running_nsqlookupd() as lookupd:
        with pytest.raises(NoDeadLetterNsqd, match=f"{lookupd.http_address} lists no nsqd"):
            check_sink(sink(lookupd_http_addresses=lookupd.http_address))
        with running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]):

            def is_found() -> bool:
                try:
                    check_sink(sink(lookupd_http_addresses=f"{AWAY},{lookupd.http_address}"))
                except NoDeadLetterNsqd:
                    return False
                return True

            wait_for(is_found, "the nsqd")
