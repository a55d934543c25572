"""A run's status: lag, latency, rates, and what is wrong, from what the run sees."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")

from tests.support.pipeline_tables import BEGAN, Run

FIRST, SECOND = "127.0.0.1:4150", "127.0.0.1:4152"


def test_a_run_that_is_starting() -> None:
    run = Run()
    assert run.status.current["state"] == "running"
    assert run.status.current["lag"] is None and run.status.current["depth"] is None
    json.dumps(run.status.current)


def test_the_lag_is_the_age_of_the_newest_message_while_others_wait() -> None:
    run = Run()
    assert run.look(3, {FIRST: 10})["lag"] == 3
    run.wrote(0, latency=100.0)
    assert run.look(5, {FIRST: 10})["lag"] == pytest.approx(105)
    assert run.look(6, {FIRST: 0})["lag"] == 0
    # After an hour without messages, the table is not an hour late.
    run.look(3600)
    assert run.look(3602, {FIRST: 1})["lag"] == pytest.approx(2)


def test_a_batch_that_takes_long_is_lag() -> None:
    run = Run()
    run.look(1)
    assert run.look(61, {FIRST: 0}, busy=True)["lag"] == pytest.approx(60)


def test_latency_leaves_out_what_waited_for_the_start() -> None:
    run = Run()
    run.wrote(0, latency=8.0)
    assert run.look(2)["latency"] is None
    # Of the second batch, which began 10 s later, some were published before the first was done.
    run.wrote(1, messages=70, latency=9.9)
    run.wrote(1, messages=30, latency=0.5)
    latency = run.look(12)["latency"]
    assert latency["messages"] == 30
    assert latency["p99"] == pytest.approx(0.5, rel=0.03)


def test_an_empty_batch_ends_the_start() -> None:
    run = Run()
    run.status.is_ready(BEGAN + 4)
    run.wrote(1, latency=2.0)
    assert run.look(12)["latency"]["p50"] == pytest.approx(2, rel=0.03)


def test_old_batches_leave_the_window_but_not_the_last() -> None:
    run = Run(window=30.0)
    run.wrote(0, messages=100, rejected=50)
    run.wrote(1, messages=100, rejected=10)
    assert run.look(15)["rejected_share"] == pytest.approx(0.3)
    assert run.look(35)["rejected_share"] == pytest.approx(0.1)
    assert run.look(900)["rejected_share"] == pytest.approx(0.1)
    assert run.look(900)["rejected"] == 60


def test_the_rate_is_that_of_the_last_minute() -> None:
    run = Run()
    run.look(0.5)
    run.wrote(0, messages=600)
    assert run.look(10)["rate"] == pytest.approx(60)
    run.look(60)
    run.look(70)
    assert run.look(130)["rate"] == 0


def test_an_nsqd_that_is_away_is_named_and_since_when() -> None:
    run = Run()
    run.look(1, {FIRST: 3, SECOND: 4})
    run.look(5, {FIRST: 3, SECOND: None})
    [topic] = run.look(9, {FIRST: 3, SECOND: None})["topics"]
    assert (topic["topic"], topic["channel"], topic["depth"], topic["in_flight"]) == ("clicks", "table", 3, 1)
    assert [(each["address"], each["depth"], each["away_since"]) for each in topic["nsqds"]] == [
        (FIRST, 3, None),
        (SECOND, None, BEGAN + 5),
    ]
    assert run.look(11, {FIRST: 3, SECOND: 0})["topics"][0]["nsqds"][1]["away_since"] is None
    # nsqlookupd lists it no longer.
    assert len(run.look(60, {FIRST: 3})["topics"][0]["nsqds"]) == 1


def test_a_limit_is_a_problem_while_it_is_passed() -> None:
    run = Run(lag=60.0, depth=1000)
    assert run.look(59, {FIRST: 900})["status"] == "ok"
    run.look(61, {FIRST: 1001})
    status = run.look(63, {FIRST: 1001})
    assert status["status"] == "failing"
    assert [(problem["name"], problem["since"] - BEGAN) for problem in status["problems"]] == [
        ("lag", 61),
        ("depth", 61),
    ]
    assert [problem["text"] for problem in status["problems"]] == [
        "the table is 63 s behind, more than 60 s",
        "1,001 messages wait, more than 1,000",
    ]
    assert run.look(65)["status"] == "ok"


def test_rejected_messages_and_silence() -> None:
    run = Run(rejected=0.05, nothing_for=600.0)
    run.wrote(0, messages=100, rejected=6)
    assert [each["text"] for each in run.look(2)["problems"]] == ["6.0% of the messages are rejected, more than 5.0%"]
    run.wrote(1, messages=100)
    assert run.look(12)["problems"] == []
    assert [each["text"] for each in run.look(611)["problems"]] == ["nothing came for 10 min"]


def test_silence_counts_from_the_last_batch_of_an_earlier_run() -> None:
    run = Run(nothing_for=600.0)
    run.status.came_before(BEGAN - 599)
    assert [each["name"] for each in run.look(2)["problems"]] == ["nothing_came"]


def test_no_nsqd_at_all() -> None:
    run = Run()
    status = run.look(2, {FIRST: None, SECOND: None})
    assert [each["text"] for each in status["problems"]] == [f"no nsqd of clicks answers: {FIRST}, {SECOND}"]
    assert status["depth"] is None and status["lag"] is None


def test_the_end_judges_at_once() -> None:
    run = Run(rejected=0.05)
    run.look(1)
    run.wrote(0, messages=100, rejected=50)
    run.status.end()
    assert run.status.current["state"] == "ended"
    assert [problem["name"] for problem in run.status.current["problems"]] == ["rejected"]


def test_a_failed_run_says_why() -> None:
    run = Run()
    run.status.end("a disk is full")
    assert (run.status.current["state"], run.status.current["status"]) == ("failed", "failing")
    assert run.status.current["problems"][0]["text"] == "a disk is full"
