"""The errors of publishes that nsqd did not confirm: not sent, refused, or with an unknown outcome."""

from __future__ import annotations

from collections.abc import Iterable

from gnsq_like.errors import NotSent, NsqdError, NSQError, OutcomeUnknown, PublishRefused
from gnsq_like.runtime.pending_reply import PendingReply


def refusal(address: str, error: NsqdError, may_be_allowed: bool) -> NSQError:
    """The error of a publish that nsqd answered with an error.

    :param may_be_allowed: whether a new connection may be allowed what was unauthorized here
    """
    verdict = error.publish_verdict
    if verdict == "unknown":
        return OutcomeUnknown(address, str(error))
    if verdict == "not taken" or (error.code == "E_UNAUTHORIZED" and may_be_allowed):
        return NotSent(f"nsqd at {address} did not execute it: {error}")
    return PublishRefused(error, address)


def fail_all(replies: Iterable[object], address: str, failure: NSQError, sent_count: int) -> None:
    """Settle the publishes that were unanswered when their connection ended. Never switches.

    :param failure: why it ended
    :param sent_count: how many bytes of the connection's output nsqd may have
    """
    # nsqd executes nothing after a fatal error, and no incomplete command.
    not_executed = isinstance(failure.__cause__, NsqdError)
    for reply in replies:
        assert isinstance(reply, PendingReply)
        if not_executed or reply.end > sent_count:
            reply.settle(NotSent(f"nsqd at {address} did not execute it: {failure}"))
        else:
            reply.settle(OutcomeUnknown(address, str(failure)))
