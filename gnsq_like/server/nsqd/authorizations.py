r"""A client's permissions, from an auth server's response (docs/internals 1.4). Pure.

The regular expressions in it are Go's, and are run by Python's ``re``; both search, unanchored. A response
with syntax that only Go has (such as ``\pL``, ``[[:alpha:]]`` or flags in the middle) or only Python has
(lookaround, back references) is rejected, the latter as by nsqd; ``\z`` is translated. Names contain neither
newlines nor letters beyond ASCII, so the rest means the same in both.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from gnsq_like.server.shared.gotext import GoObject, read_object

_PERMISSIONS = frozenset({"subscribe", "publish"})
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
#: Not in Go: back references, lookaround, conditions, comments. Not in Python: classes like [:alpha:].
_NOT_IN_BOTH = re.compile(r"\\[1-9]|\(\?(?:[=!(#]|<[=!]|P[=>])|\[:")


@dataclass(frozen=True)
class Authorization:
    """One entry of the response."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """As :meth:`Access.allows`."""
        needed = "subscribe" if channel else "publish"
        return (
            needed in self.permissions
            and self.topic.search(topic) is not None
            # This holds for publishing, too: one of them must match the empty name.
            and any(pattern.search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True)
class Access:
    """The whole response: the client's identity, its permissions, and how long they last."""

    identity: str
    identity_url: str
    #: Seconds.
    ttl: int
    authorizations: tuple[Authorization, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to ``channel``, or, if that is empty, publish to ``topic``."""
        return any(each.allows(topic, channel) for each in self.authorizations)


def read_access(body: bytes) -> Access:
    """Parse an auth server's response.

    :raises ValueError: if any part of it is malformed
    """
    answer = read_object(body)
    authorizations = tuple(_authorization(each) for each in answer.objects("authorizations"))
    ttl = answer.number("ttl")
    if ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    return Access(answer.text("identity"), answer.text("identity_url"), ttl, authorizations)


def _authorization(entry: GoObject) -> Authorization:
    permissions = frozenset(entry.texts("permissions"))
    if not permissions <= _PERMISSIONS:
        raise ValueError(f"unknown permission {min(permissions - _PERMISSIONS)}")
    channels = tuple(_compiled("channel", each) for each in entry.texts("channels"))
    return Authorization(_compiled("topic", entry.text("topic")), channels, permissions)


def _compiled(what: str, pattern: str) -> re.Pattern[str]:
    bare = _ESCAPED.sub(lambda escape: escape[0] if escape[1] in "123456789" else "", pattern)
    if _NOT_IN_BOTH.search(bare):
        raise ValueError(f"unable to compile {what} {pattern!r}: Go and Python do not agree on what it means")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[a]" will change its meaning; today it is Go's
            return re.compile(_ESCAPED.sub(lambda escape: r"\Z" if escape[1] == "z" else escape[0], pattern))
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"unable to compile {what} {pattern!r}: {exc}") from None
