"""Actions as commands, which pages show beside their buttons."""

from __future__ import annotations

import shlex

from gnsq_like.admin.upstream.cluster import Cluster

#: Addresses that a command names; more would hide what it does.
_MOST = 3


def command(cluster: Cluster, *words: str) -> str:
    """``gnsq-like WORDS``, for this cluster."""
    if cluster.has_lookupds:
        flag, addresses = "--lookupd-http-address", cluster.lookupd_addresses[:1]
    else:
        flag, addresses = "--nsqd-http-address", cluster.nsqd_addresses[:_MOST]
    return shlex.join(["gnsq-like", *words, *(f"{flag}={each}" for each in addresses)])
