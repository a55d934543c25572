"""Which error a publish gets that nsqd did not confirm."""

from __future__ import annotations

import pytest

from gnsq_like.connection.unconfirmed import fail_all, refusal
from gnsq_like.errors import ConnectionLost, NotSent, NsqdError, NSQError, OutcomeUnknown, PublishRefused
from gnsq_like.runtime.pending_reply import PendingReply

ADDRESS = "127.0.0.1:4150"


@pytest.mark.parametrize(
    ("code", "may_be_allowed", "expected"),
    [
        ("E_BAD_TOPIC", False, PublishRefused),
        ("E_PUB_FAILED", False, NotSent),
        ("E_MPUB_FAILED", False, OutcomeUnknown),
        ("E_UNAUTHORIZED", False, PublishRefused),
        ("E_UNAUTHORIZED", True, NotSent),
        ("E_BAD_TOPIC", True, PublishRefused),
    ],
)
def test_the_error_of_a_refused_publish(code: str, may_be_allowed: bool, expected: type[NSQError]) -> None:
    error = refusal(ADDRESS, NsqdError.from_payload(f"{code} why".encode()), may_be_allowed)
    assert type(error) is expected
    assert code in str(error)


def reply_up_to(end: int) -> PendingReply:
    reply = PendingReply()
    reply.size, reply.end = 10, end
    return reply


def test_what_nsqd_may_have_is_unknown_and_an_incomplete_command_is_not_sent() -> None:
    replies = [reply_up_to(10), reply_up_to(20), reply_up_to(30)]
    fail_all(replies, ADDRESS, ConnectionLost(ADDRESS, "it ended"), 25)
    assert [type(reply.error) for reply in replies] == [OutcomeUnknown, OutcomeUnknown, NotSent]


def test_after_a_fatal_error_nothing_was_executed() -> None:
    lost = ConnectionLost(ADDRESS, "it ended")
    lost.__cause__ = NsqdError.from_payload(b"E_INVALID why")
    reply = reply_up_to(10)
    fail_all([reply], ADDRESS, lost, 25)
    assert isinstance(reply.error, NotSent)
