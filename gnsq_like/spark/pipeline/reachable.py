"""Checks that a master and a dead-letter nsqd answer: Spark itself would try for minutes before it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gevent
from gevent import socket

from gnsq_like import Connection, LookupdClient
from gnsq_like.addresses import parse_address, shown
from gnsq_like.errors import NSQError
from gnsq_like.spark.format_options import connection_options
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.sink import SinkOptions

#: Seconds for each of them; they are asked at once.
_PATIENCE = 5.0


class NoDeadLetterNsqd(NSQError):
    """No nsqd takes dead letters; the text says what each of them answered."""


def check_master(master: str) -> None:
    """Raise NotBegun if no machine of a ``spark://`` master answers. May switch."""
    scheme, _, hosts = master.partition("://")
    if scheme != "spark":
        return

    def connect(address: str) -> None:
        found = parse_address(address)
        socket.create_connection((found.host, found.port), _PATIENCE).close()

    errors = _try_all(hosts.split(","), connect)
    if errors:
        raise NotBegun(f"Spark does not start on {master}: {'; '.join(errors)}")


def check_sink(options: SinkOptions) -> None:
    """Raise NoDeadLetterNsqd if none of the sink's nsqds can be connected to. May switch."""
    found: list[str] = list(options.nsqd_tcp_addresses)

    def look_up(address: str) -> None:
        with LookupdClient(address, timeout=_PATIENCE) as client:
            found.extend(node.tcp_address for node in client.nodes())

    def connect(address: str) -> None:
        connection = Connection(address, connection_options(options.nsq))
        try:
            connection.connect()
        finally:
            connection.close()

    errors = _try_all(options.lookupd_http_addresses, look_up)
    if found:
        errors = _try_all(list(dict.fromkeys(found)), connect)
    elif not errors:
        errors = [f"{', '.join(map(shown, options.lookupd_http_addresses))} lists no nsqd"]
    if errors:
        raise NoDeadLetterNsqd(f"no nsqd takes dead letters: {'; '.join(errors)}")


def _try_all(addresses: Sequence[str], attempt: Callable[[str], object]) -> list[str]:
    """Try all of them at once; returns the errors if all failed, and nothing otherwise."""

    def error_of(address: str) -> str:
        try:
            attempt(address)
        except NSQError as exc:
            return str(exc)
        except OSError as exc:
            return f"{shown(address)}: {exc.strerror or exc}"
        return ""

    greenlets = [gevent.spawn(error_of, each) for each in addresses]
    gevent.joinall(greenlets, raise_error=True)
    errors: list[str] = [each.value for each in greenlets]
    return errors if all(errors) else []
