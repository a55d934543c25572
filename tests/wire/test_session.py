"""The session: whose answer is what, and that any bytes give events and never another exception."""

import json

import pytest

from gnsq_like.errors import InvalidName, NegotiationFailed, NotRunning, ProtocolError
from gnsq_like.wire import commands
from gnsq_like.wire.frames import ERROR, MESSAGE, RESPONSE, Messages, encode_frame, encode_message
from gnsq_like.wire.negotiated import Authorized, Negotiated
from gnsq_like.wire.session import (
    AuthRequired,
    Broken,
    CommandFailed,
    Confirmed,
    Heartbeat,
    Identified,
    Session,
    State,
    Upgrade,
)
from tests.support.peer import ANSWER, BAD_ANSWERS

OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")


def state_of(session: Session) -> State:
    """For mypy, which takes a state once seen to be the state for good."""
    return session.state


def error(text):
    return encode_frame(ERROR, text.encode())


def subscribe(session):
    session.subscribe("t", "c", "SUB")
    session.expect("SUB")


def ready():
    session: Session[object] = Session({})
    session.start()
    assert isinstance(session.receive(OK)[0], Identified)
    return session


def subscribed():
    session = ready()
    subscribe(session)
    assert session.receive(OK) == [Confirmed(["SUB"])]
    return session


def test_the_first_bytes_are_magic_and_identify():
    session: Session[object] = Session({"client_id": "me"})
    assert session.start() == b'  V2IDENTIFY\n\x00\x00\x00\x12{"client_id":"me"}'
    assert session.state is State.IDENTIFYING


def test_what_nsqd_answers_is_kept():
    session: Session[object] = Session({})
    session.start()
    [event] = session.receive(encode_frame(RESPONSE, ANSWER))
    assert isinstance(event, Identified)
    assert session.negotiated == Negotiated.from_payload(ANSWER)
    assert session.state is State.READY


def test_a_plain_ok_is_an_old_nsqd():
    session: Session[object] = Session({})
    session.start()
    assert [type(event) for event in session.receive(OK)] == [Identified]
    assert session.negotiated == Negotiated(counts_rdy_down=True)


@pytest.mark.parametrize("payload", BAD_ANSWERS)
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_wrong_answer_to_identify_breaks_the_session(payload):
    session: Session[object] = Session({})
    session.start()
    [event] = session.receive(encode_frame(RESPONSE, payload))
    assert isinstance(event, Broken)
    assert isinstance(event.error, ProtocolError)
    assert session.broken


def negotiating(required=(), **asked):
    session: Session[object] = Session({"tls_v1": True, "snappy": True, **asked}, required=required)
    session.start()
    return session


def answer(**fields):
    return encode_frame(RESPONSE, json.dumps({"version": "1.3.0", **fields}).encode())


def test_each_upgrade_begins_with_the_bytes_that_came_already():
    session = negotiating()
    [upgrade] = session.receive(answer(tls_v1=True, snappy=True) + b"of TLS")
    assert (upgrade.feature, upgrade.rest) == ("tls_v1", b"of TLS")
    assert state_of(session) is State.UPGRADING
    [upgrade] = session.receive(OK + b"\xff\x06\x00\x00sNaPpY")
    assert (upgrade.feature, upgrade.rest) == ("snappy", b"\xff\x06\x00\x00sNaPpY")
    assert session.receive(OK[:5]) == []
    [identified, beat] = session.receive(OK[5:] + HEARTBEAT)
    assert isinstance(identified, Identified)
    assert session.negotiated.tls_v1
    assert session.negotiated.snappy
    assert beat == Heartbeat()
    assert state_of(session) is State.READY


def test_what_came_before_an_upgrade_byte_by_byte():
    session = negotiating()
    events = []
    for byte in HEARTBEAT + answer(snappy=True):
        events += session.receive(bytes([byte]))
    assert [type(event) for event in events] == [Heartbeat, Upgrade]
    assert events[1].rest == b""


def test_auth_comes_last_and_only_when_it_is_asked_for():
    session = negotiating(deflate=True, snappy=False)
    [upgrade] = session.receive(answer(deflate=True, deflate_level=3, auth_required=True))
    assert (upgrade.feature, session.negotiated.deflate_level) == ("deflate", 3)
    assert session.receive(OK + HEARTBEAT) == [AuthRequired(), Heartbeat()]
    with pytest.raises(NotRunning):
        session.expect("early")
    assert session.authenticate("secret") == b"AUTH\n\x00\x00\x00\x06secret"
    payload = b'{"identity":"bob","identity_url":"http://x","permission_count":2}'
    authorized, identified = session.receive(encode_frame(RESPONSE, payload))
    assert authorized == Authorized("bob", "http://x", 2)
    assert isinstance(identified, Identified)
    with pytest.raises(NotRunning):
        session.authenticate("secret")


def test_a_refused_secret_breaks_the_session():
    session = negotiating()
    assert session.receive(answer(auth_required=True)) == [AuthRequired()]
    session.authenticate("wrong")
    [broken] = session.receive(error("E_AUTH_FAILED AUTH failed"))
    assert broken.error.code == "E_AUTH_FAILED"


@pytest.mark.parametrize(
    "payload", [b"OK", b"", b"[]", b'{"identity":3}', b'{"permission_count":"2"}', b'{"permission_count":true}']
)
def test_a_wrong_answer_to_auth_breaks_the_session(payload):
    session = negotiating()
    session.receive(answer(auth_required=True))
    session.authenticate("secret")
    [broken] = session.receive(encode_frame(RESPONSE, payload))
    assert isinstance(broken.error, ProtocolError)


@pytest.mark.parametrize("reply", [OK, answer(), answer(tls_v1=False)])
def test_what_is_required_and_not_granted_breaks_the_session(reply):
    [broken] = negotiating(required=["tls_v1"]).receive(reply)
    assert isinstance(broken.error, NegotiationFailed)
    assert str(broken.error) == (
        'tls_v1: nsqd does not offer it; enable it by nsqd\'s flags, or set tls_v1="prefer" to go without'
    )
    assert isinstance(negotiating().receive(reply)[0], Identified)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (answer(deflate=True), "nsqd switched to deflate, which was not requested"),
        (encode_frame(MESSAGE, b"x" * 30), "unknown frame type 2"),
        (b"\x00\x00\x00\x03", "invalid frame size 3; the minimum is 4"),
    ],
)
def test_a_wrong_course_of_the_negotiation_breaks_the_session(reply, says):
    session = negotiating()
    [broken] = session.receive(reply + bytes(8))
    assert isinstance(broken.error, ProtocolError)
    assert str(broken.error) == says


def test_two_codecs_at_once_break_the_session():
    [broken] = negotiating(deflate=True).receive(answer(snappy=True, deflate=True))
    assert isinstance(broken.error, ProtocolError)
    assert str(broken.error) == "nsqd switched to both snappy and deflate"


def test_subscribe_receive_and_close():
    session = subscribed()
    message = (5, 1, b"0123456789abcdef", b"body")
    assert session.receive(encode_message(*message) * 2 + HEARTBEAT) == [Messages([message] * 2), Heartbeat()]
    assert session.close("CLS") == commands.CLS
    session.expect("CLS")
    assert session.receive(encode_frame(RESPONSE, b"CLOSE_WAIT")) == [Confirmed(["CLS"])]
    assert not session.unanswered


def test_a_bad_name_leaves_the_session_as_it_was():
    session = ready()
    with pytest.raises(InvalidName):
        session.subscribe("bad name", "c", "SUB")
    subscribe(session)
    assert session.receive(OK) == [Confirmed(["SUB"])]


def test_a_refused_sub_breaks_the_session():
    session = ready()
    subscribe(session)
    [event] = session.receive(error("E_SUB_FAILED SUB failed exiting"))
    assert event.error.code == "E_SUB_FAILED"
    assert event.error.detail == "SUB failed exiting"
    assert session.abandon() == ["SUB"]


def test_publishes_are_confirmed_oldest_first_and_in_runs():
    session = ready()
    for token in "abc":
        session.expect(token)
    assert session.receive(OK + OK + HEARTBEAT + OK) == [
        Confirmed(["a", "b"]),
        Heartbeat(),
        Confirmed(["c"]),
    ]
    assert not session.unanswered


def test_publishes_are_confirmed_before_and_after_messages_of_the_same_read():
    session = subscribed()
    for token in "ab":
        session.expect(token)
    message = (1, 1, b"i" * 16, b"body")
    received = session.receive(OK + encode_message(*message) + OK)
    assert received == [Confirmed(["a"]), Messages([message]), Confirmed(["b"])]


def test_an_error_belongs_to_the_oldest_unanswered_publish():
    session = ready()
    for token in "abcd":
        session.expect(token)
    confirmed, refused, broken = session.receive(OK + error("E_BAD_MESSAGE PUB message too big"))
    assert confirmed == Confirmed(["a"])
    assert refused.token == "b"
    assert refused.error.code == "E_BAD_MESSAGE"
    assert broken == Broken(refused.error)
    assert session.abandon() == ["c", "d"]


def test_an_abandoned_session_takes_nothing_more():
    session = ready()
    session.expect("a")
    assert not session.broken
    assert session.abandon() == ["a"]
    assert session.broken
    assert session.abandon() == []
    with pytest.raises(NotRunning, match=r"^the session is broken$"):
        session.receive(OK)
    with pytest.raises(NotRunning, match=r"^cannot publish while the session is BROKEN$"):
        session.expect("b")


def test_a_failed_fin_belongs_to_no_publish_and_ends_nothing():
    session = subscribed()
    session.expect("a")
    text = "E_FIN_FAILED FIN 0000000000000000 failed ID not in flight"
    [event, confirmed] = session.receive(error(text) + OK)
    assert isinstance(event, CommandFailed)
    assert (event.error.code, event.error.fatal) == ("E_FIN_FAILED", False)
    assert confirmed == Confirmed(["a"])


def test_sub_and_publishes_share_one_order():
    session = ready()
    session.expect("before")
    subscribe(session)
    session.expect("after")
    assert session.receive(OK * 3) == [Confirmed(["before"]), Confirmed(["SUB"]), Confirmed(["after"])]


def test_an_answer_that_nothing_asked_for_breaks_the_session():
    session = ready()
    [event] = session.receive(OK)
    assert isinstance(event.error, ProtocolError)
    with pytest.raises(NotRunning, match=r"^the session is broken$"):
        session.receive(OK)


def upgrading():
    session = negotiating()
    session.receive(answer(tls_v1=True))
    return session


def subscribing():
    session = ready()
    subscribe(session)
    return session


def publishing():
    session = ready()
    session.expect("a")
    return session


def closing():
    session = subscribed()
    session.close("CLS")
    session.expect("CLS")
    return session


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (ready, "reply to no command"),
        (publishing, "wrong reply to a publish"),
        (upgrading, "wrong reply to UPGRADE"),
        (subscribing, "wrong reply to SUB"),
        (closing, "wrong reply to CLS"),
    ],
)
def test_a_wrong_answer_is_shown(make, says):
    session = make()
    [event] = session.receive(encode_frame(RESPONSE, b"x" * 81))
    assert isinstance(event.error, ProtocolError)
    assert str(event.error) == f"{says}: {b'x' * 80!r}"


def test_what_came_before_a_fault_is_still_handed_up():
    session = subscribed()
    message = (5, 1, b"0123456789abcdef", b"body")
    run, broken = session.receive(encode_message(*message) + bytes(8))
    assert run == Messages([message])
    assert isinstance(broken.error, ProtocolError)


@pytest.mark.parametrize("frame_type", [3, -1, 2**31 - 1])
def test_an_unknown_frame_type_breaks_the_session(frame_type):
    [event] = ready().receive(encode_frame(frame_type, b"x"))
    assert isinstance(event.error, ProtocolError)
    assert str(event.error) == f"unknown frame type {frame_type}"


def test_commands_out_of_their_state_are_refused_locally():
    session: Session[object] = Session({})
    with pytest.raises(NotRunning, match=r"^cannot publish while the session is NEW$"):
        session.expect("early")
    with pytest.raises(NotRunning, match=r"^the session is NEW, so it cannot become SUBSCRIBING$"):
        session.subscribe("t", "c", "SUB")
    session.start()
    with pytest.raises(NotRunning, match=r"^the session is IDENTIFYING, so it cannot become IDENTIFYING$"):
        session.start()
    session = subscribed()
    with pytest.raises(NotRunning):
        session.subscribe("t", "c", "SUB")
    session.close("CLS")
    with pytest.raises(NotRunning):
        session.close("CLS")
