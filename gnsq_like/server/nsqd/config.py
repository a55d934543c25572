"""nsqd's options in its HTTP API: /config/<name> (docs/internals 3.5).

Names are those of NSQ's config file; durations are nanoseconds, and options that NSQ keeps as numbers are
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any, Protocol

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress
from gnsq_like.server.options import LOG_LEVELS, TLS_REQUIRED, TLS_VERSIONS, NsqdOptions, config_name
from gnsq_like.server.shared.wsgi import Answer, Problem, Request, Routes, TakesBody


class Configured(Protocol):
    """What this needs of an nsqd."""

    options: NsqdOptions

    @property
    def broadcast_address(self) -> str: ...
    @property
    def broadcast_tcp_port(self) -> int: ...
    @property
    def broadcast_http_port(self) -> int: ...
    def set_log_level(self, level: str) -> None: ...
    def set_lookupd_tcp_addresses(self, addresses: Iterable[str]) -> None: ...


def routes(nsqd: Configured) -> Routes:
    """This part of the table of nsqd's HTTP API."""
    return {
        "/config/<name>": {
            "GET": lambda request: _option(nsqd, request.last_word),
            "PUT": TakesBody(lambda request: _set_option(nsqd, request)),
        }
    }


def _option(nsqd: Configured, name: str) -> Answer:
    for field in fields(nsqd.options):
        if config_name(field.name) == name:
            # The defaults of these depend on the addresses that are listened on.
            source = nsqd if field.name.startswith("broadcast_") else nsqd.options
            return _shown(field, getattr(source, field.name))
    raise Problem(400, "INVALID_OPTION")


def _set_option(nsqd: Configured, request: Request) -> Answer:
    """Change one of the two options that can change at run time; the response has the new value."""
    name = request.last_word
    body = request.read_body(nsqd.options.max_msg_size + 1)
    if not body or len(body) > nsqd.options.max_msg_size:
        raise Problem(413, "INVALID_VALUE")
    if name == "nsqlookupd_tcp_addresses":
        nsqd.set_lookupd_tcp_addresses(_addresses(body))
    elif name == "log_level":
        level = body.decode("utf-8", "replace").lower()
        if level not in LOG_LEVELS:
            raise Problem(400, "INVALID_VALUE")
        nsqd.set_log_level(level)
    else:
        raise Problem(400, "INVALID_OPTION")
    return _option(nsqd, name)


def _addresses(body: bytes) -> list[str]:
    try:
        addresses = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "INVALID_VALUE") from None
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise Problem(400, "INVALID_VALUE")
    try:
        for address in addresses:
            parse_address(address)
    except InvalidAddress:
        raise Problem(400, "INVALID_VALUE") from None
    return addresses


def _shown(field: Field[Any], value: Any) -> Answer:
    if field.name == "log_level":
        return LOG_LEVELS.index(value) + 1
    if field.name == "tls_required":
        return TLS_REQUIRED.index(value)
    if field.name == "tls_min_version":
        return TLS_VERSIONS[value]
    if isinstance(field.default, float):
        return round(value * 1e9)
    return list(value) if isinstance(value, tuple) else value
