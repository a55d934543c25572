"""nsqd's options as its HTTP API shows and changes them: /config/<name> (docs/internals 3.5).

Names are those of NSQ's config file; durations are nanoseconds, and what NSQ keeps as a number is one here.
"""

from __future__ import annotations

import json
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from gnsq_like.server.options import LOG_LEVELS, TLS_REQUIRED, TLS_VERSIONS, config_name
from gnsq_like.server.shared.wsgi import Answer, Problem

if TYPE_CHECKING:
    from gnsq_like.server.nsqd.nsqd import Nsqd


def option(nsqd: Nsqd, name: str) -> Answer:
    """The value of an option. Raises Problem for an unknown name."""
    for field in fields(nsqd.options):
        if config_name(field.name) == name:
            # What is told to others has a default that is known only now.
            source = nsqd if field.name.startswith("broadcast_") else nsqd.options
            return _shown(field, getattr(source, field.name))
    raise Problem(400, "INVALID_OPTION")


def set_option(nsqd: Nsqd, name: str, body: bytes) -> Answer:
    """Change one of the two options that can be changed, at once; gives the new value. Raises Problem."""
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
    return option(nsqd, name)


def _addresses(body: bytes) -> list[str]:
    try:
        addresses = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "INVALID_VALUE") from None
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise Problem(400, "INVALID_VALUE")
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
