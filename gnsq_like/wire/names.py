"""Topic and channel names (docs/internals 0): 1 to 64 characters, ``#ephemeral`` included."""

from __future__ import annotations

import re
from functools import lru_cache

from gnsq_like.errors import InvalidName

#: Characters, suffix included.
MAX_NAME_LENGTH = 64
EPHEMERAL = "#ephemeral"

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


def is_valid_name(name: str) -> bool:
    """Whether nsqd accepts ``name`` as a topic or channel name."""
    # Not match() with "$": a trailing newline would pass, and end the command line early.
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether this is the name of an ephemeral topic or channel, which nsqd keeps in memory only."""
    return name.endswith(EPHEMERAL)


# Bounded, because a faulty caller may generate names.
@lru_cache(maxsize=4096)
def _encoded(kind: str, name: str) -> bytes:
    if not is_valid_name(name):
        raise InvalidName(kind, name)
    return name.encode("ascii")


def encode_topic(name: str) -> bytes:
    """The bytes of a topic name. Raises InvalidName if nsqd would refuse it."""
    if not isinstance(name, str):
        raise InvalidName("topic", name)
    return _encoded("topic", name)


def encode_channel(name: str) -> bytes:
    """The bytes of a channel name. Raises InvalidName if nsqd would refuse it."""
    if not isinstance(name, str):
        raise InvalidName("channel", name)
    return _encoded("channel", name)
