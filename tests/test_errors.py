"""The tree of errors, what each carries, and nsqd's codes (docs/internals 1)."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import errors
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    HTTPRequestFailed,
    HTTPStatusError,
    InvalidAddress,
    InvalidBody,
    InvalidName,
    InvalidOption,
    NegotiationFailed,
    NotRunning,
    NotSent,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
    PublishRefused,
    Requeue,
    TLSError,
    UsageError,
    check_seconds,
    did_you_mean,
)

WHERE = "127.0.0.1:4150"

#: One of each kind that is raised, and a piece of its text.
EXAMPLES: list[tuple[NSQError, str]] = [
    (UsageError("no"), "no"),
    (InvalidName("topic", "two words"), "topic name 'two words'"),
    (InvalidBody("empty"), "empty"),
    (InvalidAddress("nowhere", "no port"), "'nowhere': no port"),
    (InvalidOption("max_in_flight", -1, "at least 0"), "max_in_flight=-1: at least 0"),
    (NotRunning("stopped"), "stopped"),
    (ProtocolError("too short"), "too short"),
    (InvalidAddress("ftp://h", "no scheme", "a URL"), "'ftp://h': no scheme; write a URL"),
    (TLSError("expired", "yesterday"), "has expired: yesterday"),
    (TLSError("wrong_hostname", "not valid for 'h'."), "not valid for 'h'; set server_hostname="),
    (NegotiationFailed("snappy", "refused"), "snappy: refused"),
    (NsqdError("E_BAD_TOPIC", "SUB"), "E_BAD_TOPIC SUB"),
    (
        NsqdError("E_INVALID", "cannot SUB in current state (TLS required)"),
        "nsqd answered E_INVALID cannot SUB in current state (TLS required); set tls_v1=True",
    ),
    (NsqdError("E_AUTH_FAILED", "AUTH failed"), "E_AUTH_FAILED AUTH failed; check auth_secret="),
    (
        PublishRefused(NsqdError("E_UNAUTHORIZED", 'AUTH failed for PUB on "t" ""'), WHERE),
        "check auth_secret=, and its permissions for this topic",
    ),
    (ConnectionFailed(WHERE, "refused"), f"no connection to {WHERE}: refused"),
    (ConnectionLost(WHERE, "reset"), f"connection to {WHERE} lost: reset"),
    (NotSent("away"), "away"),
    (PublishRefused(NsqdError("E_BAD_MESSAGE", "too big"), WHERE), f"{WHERE} refused the publish: E_BAD_MESSAGE"),
    (OutcomeUnknown(WHERE, "lost"), "not confirmed: lost"),
    (OutcomeUnknown(WHERE, "lost", ("127.0.0.1:4152",)), "confirmed by 127.0.0.1:4152 only"),
    (HTTPRequestFailed("http://h/", "timed out"), "http://h/: timed out"),
    (HTTPStatusError("http://h/", 404, "TOPIC_NOT_FOUND"), "http://h/: HTTP 404 TOPIC_NOT_FOUND"),
]


def drawn_tree() -> dict[str, str]:
    """Each class in the module's docstring, and the class that it stands under there."""
    above: list[tuple[int, str]] = []
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│ ├└─]*)(\w+)", line)
        if found is None or not hasattr(errors, found[2]):
            continue
        depth = len(found[1])
        above = [each for each in above if each[0] < depth]
        parents[found[2]] = above[-1][1] if above else "Exception"
        above.append((depth, found[2]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = drawn_tree()
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert set(drawn) == classes
    for name, parent in drawn.items():
        public = [each.__name__ for each in getattr(errors, name).__mro__[1:] if not each.__name__.startswith("_")]
        assert public[0] == parent, name


@pytest.mark.parametrize(("error", "says"), EXAMPLES, ids=[type(each[0]).__name__ for each in EXAMPLES])
def test_the_text_is_made_of_the_data_and_both_travel(error: NSQError, says: str) -> None:
    assert says in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    # An nsqd's error among them compares by itself, so their texts.
    assert {name: str(value) for name, value in vars(again).items()} == {
        name: str(value) for name, value in vars(error).items()
    }


def test_confirmed_by_some_and_sent_to_no_other() -> None:
    error = OutcomeUnknown("", "not sent to another in time", ("127.0.0.1:4150",))
    assert str(error) == "confirmed by 127.0.0.1:4150 only; not sent to another in time"


def test_a_path_that_the_daemon_does_not_have_asks_for_the_port() -> None:
    assert "the right port?" in str(HTTPStatusError("http://127.0.0.1:4151/nodes", 404, "NOT_FOUND"))
    assert "the right port?" not in str(HTTPStatusError("http://127.0.0.1:4161/lookup", 404, "TOPIC_NOT_FOUND"))


def test_only_three_codes_leave_the_connection_open() -> None:
    open_after = {code for code in errors.ERROR_CODES if not NsqdError(code).fatal}
    assert open_after == {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"}
    assert NsqdError("E_SOMETHING_NEW").fatal


#: Every error with which nsqd 1.3.0 may answer a publish (docs/internals 1.1, 1.2, 1.4, 1.9 to 1.11), and those of
#: commands before it on the same connection.
PUBLISH_ERRORS: dict[str, list[str]] = {
    "refused": [
        "E_INVALID PUB insufficient number of parameters",
        "E_INVALID MPUB insufficient number of parameters",
        "E_INVALID DPUB insufficient number of parameters",
        "E_INVALID DPUB could not parse timeout x",
        "E_INVALID DPUB timeout 3600001 out of range 0-3600000",
        "E_INVALID cannot PUB in current state (TLS required)",
        "E_INVALID invalid command DPUB",
        'E_BAD_TOPIC PUB topic name "a b" is not valid',
        'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a b" is not valid',
        'E_BAD_TOPIC DPUB topic name "a b" is not valid',
        "E_BAD_MESSAGE PUB invalid message body size 0",
        "E_BAD_MESSAGE PUB message too big 2 > 1",
        "E_BAD_MESSAGE DPUB invalid message body size 0",
        "E_BAD_MESSAGE DPUB message too big 2 > 1",
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        "E_BAD_MESSAGE MPUB message too big 2 > 1",
        "E_BAD_BODY MPUB invalid body size 0",
        "E_BAD_BODY MPUB body too big 2 > 1",
        "E_BAD_BODY MPUB invalid message count 0",
        "E_AUTH_FIRST AUTH required before PUB",
        'E_UNAUTHORIZED AUTH failed for PUB on "t" ""',
        "E_SOMETHING_NEW",
    ],
    "not taken": [
        "E_BAD_MESSAGE PUB failed to read message body size",
        "E_BAD_MESSAGE PUB failed to read message body",
        "E_BAD_MESSAGE DPUB failed to read message body size",
        "E_BAD_MESSAGE DPUB failed to read message body",
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
        "E_BAD_MESSAGE MPUB failed to read message body",
        "E_BAD_BODY MPUB failed to read body size",
        "E_BAD_BODY MPUB failed to read message count",
        "E_PUB_FAILED PUB failed exiting",
        "E_DPUB_FAILED DPUB failed write t.diskqueue.000000.dat: no space left on device",
        "E_AUTH_FAILED AUTH failed",
        "E_INVALID RDY count 3000 out of range 0-2500",
        "E_INVALID cannot FIN in current state",
        "E_INVALID REQ could not parse timeout x",
        "E_INVALID TOUCH insufficient number of params",
        "E_INVALID invalid message ID",
    ],
    "unknown": ["E_MPUB_FAILED MPUB failed exiting"],
}


@pytest.mark.parametrize(
    ("text", "verdict"), [(text, verdict) for verdict, texts in PUBLISH_ERRORS.items() for text in texts]
)
def test_what_an_error_says_about_a_publish(text: str, verdict: str) -> None:
    assert NsqdError.from_payload(text.encode()).publish_verdict == verdict


@pytest.mark.parametrize(
    ("payload", "code", "detail"),
    [
        (b"E_BAD_TOPIC SUB topic name is not valid", "E_BAD_TOPIC", "SUB topic name is not valid"),
        (b"E_INVALID", "E_INVALID", ""),
        (b"", "", ""),
        (b"\xff \xff", "\ufffd", "\ufffd"),
    ],
)
def test_an_error_frame(payload: bytes, code: str, detail: str) -> None:
    error = NsqdError.from_payload(payload)
    assert (error.code, error.detail) == (code, detail)


def failure(cause: Exception | None) -> ConnectionFailed:
    error = ConnectionFailed(WHERE, "no")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "at_first", "connected_before"),
    [
        (None, False, False),
        (OSError("refused"), False, False),
        (NsqdError("E_SUB_FAILED"), False, False),
        (NsqdError("E_NEW"), False, False),
        (NsqdError("E_AUTH_FAILED"), True, False),
        (NsqdError("E_UNAUTHORIZED"), True, False),
        (NsqdError("E_BAD_TOPIC"), True, True),
        (NsqdError("E_INVALID", "cannot SUB in current state (TLS required)"), True, True),
        (TLSError("protocol", "cut off"), False, False),
        (TLSError("expired", "yesterday"), True, False),
        (TLSError("refused", "unknown ca"), True, False),
        (TLSError("version", "no protocols available"), True, True),
        (NegotiationFailed("tls_v1", "refused"), True, True),
        (NegotiationFailed("auth", "auth_secret() raised OSError", may_pass=True), True, False),
    ],
)
def test_what_no_further_try_can_cure(cause: Exception | None, at_first: bool, connected_before: bool) -> None:
    assert errors.is_incurable(failure(cause)) is at_first
    assert errors.is_incurable(failure(cause), connected_before=True) is connected_before


def test_an_unexpected_failure_keeps_its_cause() -> None:
    cause = RuntimeError("meant")
    error = ConnectionFailed.unexpected(WHERE, cause)
    assert error.__cause__ is cause
    assert "RuntimeError('meant')" in str(error)


def test_a_wrong_delay_is_met_where_it_is_given() -> None:
    assert (Requeue().delay, Requeue().backoff) == (None, True)
    for wrong in (-1, "5", True, float("nan"), 2**31):
        with pytest.raises(ValueError, match=f"delay={wrong!r}"):
            Requeue(wrong)  # type: ignore[arg-type]
    assert not issubclass(Requeue, NSQError)


# -- suggestions for misspelt names ---------------------------------------------------------------------

KNOWN = ("msg_timeout", "max_in_flight", "nsqd_tcp_addresses")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("msg_timout", "; did you mean msg_timeout?"),
        ("MAX_INFLIGHT", "; did you mean max_in_flight?"),
        ("nsqdtcpadresses", "; did you mean nsqd_tcp_addresses?"),
        ("colour", ""),
        ("", ""),
        (7, ""),
    ],
)
def test_the_nearest_name_is_suggested_in_its_own_case(name: object, hint: str) -> None:
    assert did_you_mean(name, KNOWN) == hint


def test_a_label_says_how_names_are_written() -> None:
    assert did_you_mean("msg_timout", KNOWN, "NSQ_{}") == "; did you mean NSQ_msg_timeout?"


@given(st.text(), st.lists(st.text()))
def test_only_known_names_are_suggested(name: str, known: list[str]) -> None:
    assert did_you_mean(name, known) in {"", *(f"; did you mean {each}?" for each in known)}


@given(st.lists(st.from_regex(r"[a-z_]{3,20}", fullmatch=True), min_size=1, unique=True), st.data())
def test_a_name_that_differs_in_case_only_is_found(known: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(known))
    assert did_you_mean(name.upper(), known) == f"; did you mean {name}?"


@pytest.mark.parametrize("value", ["x", None, True, float("nan"), [1]])
def test_what_is_no_number_of_seconds(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"timeout=.*: it must be a number of seconds"):
        check_seconds("timeout", value)


def test_a_number_of_seconds() -> None:
    for value in (0, 0.5, -1, float("inf")):
        check_seconds("timeout", value)
    check_seconds("timeout", None, or_none=True)
