"""The meaning of failures: the reason for a connection's end, and the error for the caller of a publish."""

from __future__ import annotations

import logging

from gnsq_like.errors import (
    ConnectionLost,
    NegotiationFailed,
    NotSent,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
    PublishRefused,
    reason_of,
)
from gnsq_like.runtime.dispatcher import log_soon

logger = logging.getLogger(__name__)

#: The shortest validity of an auth server's response, in seconds: its ttl is a whole number (docs/internals 1.4).
_LEAST_TTL = 1.0


def lost_by(address: str, why: BaseException | str, doing: str = "") -> ConnectionLost:
    """The reason for a connection's end after this exception, or this reason; a bug is logged. Never switches."""
    if isinstance(why, str):
        return ConnectionLost(address, why)
    if isinstance(why, OSError | ProtocolError | NsqdError | NegotiationFailed):
        reason = doing + reason_of(why)
    else:
        text = "connection to %s: interrupted by a signal handler, or by a bug in gnsq_like or in a callback"
        log_soon(logger.error, text, address, exc_info=(type(why), why, why.__traceback__))
        reason = f"interrupted by {why!r}"
    lost = ConnectionLost(address, reason)
    # Without its frames, which would keep the connection as long as a log keeps the error.
    lost.__cause__ = why.with_traceback(None)
    return lost


def refused(address: str, error: NsqdError, permissions_age: float) -> NSQError:
    """The error of a publish that nsqd answered with this error.

    :param permissions_age: seconds since AUTH, if a new connection may have other permissions; otherwise 0
    """
    verdict = error.publish_verdict
    if verdict == "unknown":
        return OutcomeUnknown(address, str(error))
    # The permissions may have expired: a new connection with a fresh secret may be allowed the same.
    if verdict == "not taken" or (error.code == "E_UNAUTHORIZED" and permissions_age >= _LEAST_TTL):
        return _not_executed(address, error)
    return PublishRefused(error, address)


def not_answered(address: str, failure: NSQError, is_written: bool) -> NSQError:
    """The error of a publish that nsqd had not answered when the connection ended.

    :param is_written: whether all of it was written
    """
    # nsqd executes nothing after a fatal error, and no incomplete command.
    if isinstance(failure.__cause__, NsqdError) or not is_written:
        return _not_executed(address, failure)
    return OutcomeUnknown(address, str(failure))


def _not_executed(address: str, why: NSQError) -> NotSent:
    return NotSent(f"nsqd at {address} did not execute it: {why}")
