"""The ledger finds what is broken, and explains what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.ledger import (
    AGAIN,
    CONFIRMED,
    KILLED,
    LATE,
    LOST_CONNECTION,
    NOT_SENT,
    OUTCOMES,
    REFUSED,
    STOPPED,
    TIMED_OUT,
    UNEXPLAINED,
    UNKNOWN,
    Handling,
    Ledger,
)

MSG_TIMEOUT = 2.0
CONNECTION, OTHER = (0, 0), (0, 1)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(MSG_TIMEOUT)
    for connection in (CONNECTION, OTHER, (1, 0)):
        ledger.identified(connection, "c")
    return ledger


def publish(ledger: Ledger, number: int, outcome: str = CONFIRMED, *, at: float = 1.0, **options: object) -> None:
    ledger.publishing("c", number, at, at + 3, **options)  # type: ignore[arg-type]
    ledger.published(0, number)
    ledger.ended(number, outcome, at + 0.1, "E_PUB_FAILED" if outcome == REFUSED else "")


def deliver(
    ledger: Ledger,
    number: int,
    at: float = 2.0,
    *,
    nsqd: int = 0,
    connection: object = CONNECTION,
    answer: str = "",
    attempts: int = 1,
) -> None:
    message_id = b"%d" % number
    ledger.delivered(nsqd, connection, message_id, number, attempts, at)
    if answer == "FIN":
        handle(ledger, number, attempts=attempts)
    if answer:
        ledger.answered(nsqd, connection, message_id, answer)


def handle(
    ledger: Ledger, number: int, *, attempts: int = 1, answer: str | None = None, in_thread: bool = False
) -> None:
    ledger.handled(Handling("c", number, b"%d" % number, attempts, answer, in_thread))


def test_nothing_wrong(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, answer="FIN")
    publish(ledger, 2, NOT_SENT)
    publish(ledger, 3, UNKNOWN)
    verdict = ledger.judge()
    assert verdict.violations == {}
    assert (verdict.published, verdict.handled, verdict.delivered) == (3, 1, 1)
    assert verdict.outcomes == {CONFIRMED: 1, NOT_SENT: 1, UNKNOWN: 1}


def test_a_lost_message_is_found(ledger: Ledger) -> None:
    publish(ledger, 1)
    publish(ledger, 2)
    deliver(ledger, 2)  # and not handled
    assert ledger.judge().violations == {"lost": [1, 2]}


@pytest.mark.parametrize("outcome", [NOT_SENT, REFUSED])
def test_an_arrival_of_what_was_not_sent_is_found(ledger: Ledger, outcome: str) -> None:
    publish(ledger, 1, outcome)
    deliver(ledger, 1)
    assert ledger.judge().violations == {"arrived although not sent": [1]}


def test_a_refusal_for_another_reason_than_the_disk_is_found(ledger: Ledger) -> None:
    publish(ledger, 1, REFUSED)
    ledger.publishing("c", 2, 1.0, 4.0)
    ledger.ended(2, REFUSED, 1.1, "E_BAD_MESSAGE")
    verdict = ledger.judge()
    assert verdict.refusals == {"E_PUB_FAILED": 1, "E_BAD_MESSAGE": 1}
    assert verdict.violations == {"refused without a cause": [(2, "E_BAD_MESSAGE")]}


def test_what_two_nsqds_took_is_found_unless_it_may_be(ledger: Ledger) -> None:
    for number, may_repeat in ((1, False), (2, True)):
        publish(ledger, number, may_repeat=may_repeat)
        deliver(ledger, number, answer="FIN")
        deliver(ledger, number, nsqd=1, connection=(1, 0), answer="FIN")
    verdict = ledger.judge()
    assert verdict.violations == {"taken twice": [1]}
    assert verdict.duplicates == {AGAIN: 2}


def test_a_missed_deadline_is_found(ledger: Ledger) -> None:
    ledger.publishing("c", 1, 1.0, 2.0)
    ledger.ended(1, NOT_SENT, 2.0 + 2 * LATE)
    ledger.publishing("c", 2, 1.0, 2.0)
    ledger.ended(2, NOT_SENT, 2.0 + LATE / 2)
    assert ledger.judge().violations == {"publish after its deadline": [(1, 2 * LATE)]}


def test_unless_the_process_stood_still(ledger: Ledger) -> None:
    ledger.publishing("c", 1, 1.0, 2.0)
    ledger.ended(1, NOT_SENT, 5.0)
    ledger.stalled("another", 1.0, 5.0)
    assert ledger.judge().late
    ledger.stalled("c", 1.5, 2.0)
    assert ledger.judge().late
    ledger.stalled("c", 2.0, 2.5)
    assert not ledger.judge().late


def test_a_handling_without_a_cause_is_found(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, 2.0, answer="FIN")
    deliver(ledger, 1, 2.1, answer="FIN", attempts=2)
    verdict = ledger.judge()
    assert verdict.violations == {"handled again without a cause": [1]}
    assert verdict.duplicates == {UNEXPLAINED: 1}


def test_a_handler_that_runs_twice_for_one_delivery_is_found(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, answer="FIN")
    handle(ledger, 1)
    assert ledger.judge().unexplained == [1]


def test_a_handling_of_what_did_not_come_is_found(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, answer="FIN")
    handle(ledger, 1, attempts=2)
    assert ledger.judge().violations == {"handled without a delivery": [1]}


def test_a_requeue_explains_no_second_handling(ledger: Ledger) -> None:
    publish(ledger, 1)
    handle(ledger, 1)
    deliver(ledger, 1, 2.0, answer="REQ")
    deliver(ledger, 1, 2.1, answer="FIN", attempts=2)
    assert ledger.judge().unexplained == [1]


def test_the_cause_of_another_delivery_explains_none(ledger: Ledger) -> None:
    """The first one timed out and was not handled; the second was, and its Reader gave it back all the same."""
    publish(ledger, 1)
    deliver(ledger, 1, 2.0, connection=OTHER)
    deliver(ledger, 1, 2.0 + MSG_TIMEOUT, answer="REQ", attempts=2)
    handle(ledger, 1, attempts=2)
    deliver(ledger, 1, 2.1 + MSG_TIMEOUT, answer="FIN", attempts=3)
    assert ledger.judge().unexplained == [1]


@pytest.mark.parametrize(("answer", "in_thread"), [("REQ", False), ("REQ", True), (None, True)])
def test_a_stopped_reader_requeues_what_is_still_handled(ledger: Ledger, answer: str | None, in_thread: bool) -> None:
    """Only the order on the connection counts, and not when this process saw it."""
    for number, connection in ((1, CONNECTION), (2, OTHER)):
        publish(ledger, number)
        deliver(ledger, number, connection=connection)
        handle(ledger, number, answer=answer, in_thread=in_thread)
    ledger.unsubscribed(CONNECTION, 2.5)
    for number, connection in ((1, CONNECTION), (2, OTHER)):
        ledger.answered(0, connection, b"%d" % number, "REQ")
        deliver(ledger, number, 2.6, connection=connection, answer="FIN", attempts=2)
    verdict = ledger.judge()
    assert verdict.duplicates == {STOPPED: 1, UNEXPLAINED: 1}
    assert verdict.unexplained == [2]


def test_and_not_what_was_handled_before(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1)
    handle(ledger, 1)
    ledger.unsubscribed(CONNECTION, 2.5)
    ledger.answered(0, CONNECTION, b"1", "REQ")
    deliver(ledger, 1, 2.6, connection=OTHER, answer="FIN", attempts=2)
    assert ledger.judge().unexplained == [1]


@pytest.mark.parametrize("excuse", ["", "killed", "in thread", "dropped", "by nsqd", "no stop", "disturbed"])
def test_a_stopped_reader_does_not_close_before_it_has_sent_a_fin(ledger: Ledger, excuse: str) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, 20.0)
    handle(ledger, 1, answer="LOST" if excuse == "dropped" else None, in_thread=excuse == "in thread")
    if excuse != "no stop":
        ledger.unsubscribed(CONNECTION, 20.1)
    if excuse != "killed":
        ledger.came_to_end("c")
    if excuse == "disturbed":
        ledger.disturbed(0, 20.2, 20.3)
    ledger.closed(CONNECTION, 20.4, by_client=excuse != "by nsqd")
    ledger.closed(CONNECTION, 20.5, by_client=excuse == "by nsqd")
    deliver(ledger, 1, 20.6, connection=OTHER, answer="FIN", attempts=2)
    assert ledger.judge().duplicates == {LOST_CONNECTION if excuse else UNEXPLAINED: 1}


def test_a_late_requeue_may_take_back_the_next_delivery_on_its_connection(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, 2.0)
    deliver(ledger, 1, 2.0 + MSG_TIMEOUT, attempts=2)
    handle(ledger, 1, attempts=2)
    for answer in ("REQ", "FIN"):  # the one of the first delivery, and the one of the second, which nsqd refuses
        ledger.answered(0, CONNECTION, b"1", answer)
    deliver(ledger, 1, 2.1 + MSG_TIMEOUT, answer="FIN", attempts=3)
    assert ledger.judge().duplicates == {TIMED_OUT: 1}


def test_what_was_on_its_way_when_its_nsqd_was_killed_is_taken_with_it(ledger: Ledger) -> None:
    for number in (1, 2):
        publish(ledger, number)
    ledger.killed(0, 1.9)
    ledger.identified((0, 2), "c")
    deliver(ledger, 1, 2.0)
    deliver(ledger, 2, 2.1, connection=(0, 2))
    verdict = ledger.judge()
    assert (verdict.killed, verdict.lost) == ({"in flight or requeued": 1}, [2])


def test_a_killed_nsqd_may_count_attempts_anew(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, 2.0, answer="FIN")
    ledger.killed(0, 2.1)
    deliver(ledger, 1, 2.2, connection=OTHER, answer="FIN")
    assert ledger.judge().duplicates == {KILLED: 1}


def test_a_handling_is_not_that_of_a_delivery_before_the_kill_which_was_given_back(ledger: Ledger) -> None:
    publish(ledger, 1)
    ledger.unsubscribed(CONNECTION, 1.5)
    deliver(ledger, 1, 2.0, answer="REQ")
    ledger.killed(0, 3.0)
    deliver(ledger, 1, 4.0, connection=OTHER, answer="FIN")
    deliver(ledger, 1, 4.0 + MSG_TIMEOUT, connection=OTHER, answer="FIN", attempts=2)
    assert ledger.judge().duplicates == {TIMED_OUT: 1}


@pytest.mark.parametrize("requeued_before", [0, 1, 2])
def test_a_kill_leaves_the_records_of_what_came_back(ledger: Ledger, requeued_before: int) -> None:
    """And that in the topic's queue; each of them is delivered, and finished, after the kill."""
    publish(ledger, 1)
    for attempts in range(requeued_before):
        deliver(ledger, 1, 2.0 + attempts / 10, answer="REQ", attempts=attempts + 1)
    ledger.killed(0, 3.0)
    for turn in range(2 + requeued_before):
        deliver(ledger, 1, 4.0 + turn / 10, connection=OTHER, answer="FIN", attempts=10 + turn)
    assert ledger.judge().duplicates == {KILLED: 1 + requeued_before}
    deliver(ledger, 1, 4.9, connection=OTHER, answer="FIN", attempts=20)
    assert ledger.judge().unexplained == [1]


def test_a_kill_explains_nothing_that_was_finished_before_it_or_published_after_it(ledger: Ledger) -> None:
    ledger.killed(0, 0.5)
    for number in (1, 2):
        publish(ledger, number)
        deliver(ledger, number, 2.0, answer="FIN")
        deliver(ledger, number, 2.1, answer="FIN", attempts=2)
    ledger.killed(0, 3.0)
    assert ledger.judge().unexplained == [1, 2]


def test_causes_of_handling_again(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        publish(ledger, number)
        deliver(ledger, number, 2.0, answer="FIN")
    deliver(ledger, 1, 2.0 + MSG_TIMEOUT, connection=OTHER, answer="FIN", attempts=2)
    ledger.closed(CONNECTION, 2.1, by_client=True)
    deliver(ledger, 2, 2.1, connection=OTHER, answer="FIN", attempts=2)
    ledger.killed(0, 2.2)
    deliver(ledger, 3, 2.3, connection=OTHER, answer="FIN", attempts=2)
    verdict = ledger.judge()
    assert verdict.duplicates == {TIMED_OUT: 1, LOST_CONNECTION: 1, KILLED: 1}
    assert verdict.violations == {}


def test_a_timeout_may_seem_early_where_nsqd_stood_still(ledger: Ledger) -> None:
    publish(ledger, 1)
    deliver(ledger, 1, 3.0, answer="FIN")
    ledger.disturbed(0, 1.5, 2.9)
    deliver(ledger, 1, 3.1, answer="FIN", attempts=2)
    assert ledger.judge().duplicates == {TIMED_OUT: 1}


@pytest.mark.parametrize(("at", "cause"), [(11.4, TIMED_OUT), (12.0, TIMED_OUT), (15.0, UNEXPLAINED)])
def test_a_standstill_that_is_told_again_and_again_lasts_from_the_first_to_the_last(
    ledger: Ledger, at: float, cause: str
) -> None:
    for begin in (10.0, 10.5, 11.0, 12.4):
        ledger.disturbed(0, begin, begin + 0.5)
    publish(ledger, 1)
    deliver(ledger, 1, at, answer="FIN")
    deliver(ledger, 1, at + 0.1, answer="FIN", attempts=2)
    assert ledger.judge().duplicates == {cause: 1}


def test_a_kill_takes_what_was_in_flight_and_nothing_else(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        publish(ledger, number)
    deliver(ledger, 1)
    deliver(ledger, 2, nsqd=1, connection=(1, 0))
    deliver(ledger, 3, answer="REQ")
    ledger.killed(0, 3.0)
    verdict = ledger.judge()
    assert verdict.killed == {"in flight or requeued": 2}
    assert verdict.lost == [2]


def test_a_kill_takes_deferred_messages_while_they_wait(ledger: Ledger) -> None:
    publish(ledger, 1, defer=1.0)
    publish(ledger, 2, defer=1.0, at=100.0)
    ledger.killed(0, 1.5)
    verdict = ledger.judge()
    assert verdict.killed == {"deferred": 1}
    assert verdict.lost == [2]


def test_a_kill_may_take_no_more_unseen_messages_than_rdy_allowed(ledger: Ledger) -> None:
    ledger.granted(CONNECTION, 3)
    ledger.granted((1, 0), 100)  # another nsqd's
    for number in range(5):
        publish(ledger, number)
    ledger.killed(0, 3.0)
    assert ledger.judge().violations == {}
    assert ledger.judge().killed == {"not seen": 5}
    publish(ledger, 5)
    assert ledger.judge().lost == [0, 1, 2, 3, 4, 5]


def test_what_was_published_after_a_kill_is_not_excused_by_it(ledger: Ledger) -> None:
    ledger.granted(CONNECTION, 3)
    ledger.killed(0, 0.5)
    publish(ledger, 1)
    assert ledger.judge().lost == [1]


@given(st.lists(st.sampled_from(["FIN", "REQ", ""]), max_size=6), st.sampled_from(OUTCOMES))
def test_a_message_is_lost_exactly_if_it_is_confirmed_and_never_handled(answers: list[str], outcome: str) -> None:
    ledger = Ledger(MSG_TIMEOUT)
    ledger.identified(CONNECTION, "c")
    publish(ledger, 1, outcome)
    for turn, answer in enumerate(answers):
        deliver(ledger, 1, 2.0 + 10 * turn, answer=answer, attempts=turn + 1)
    assert bool(ledger.judge().lost) == (outcome == CONFIRMED and "FIN" not in answers)
