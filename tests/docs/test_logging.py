"""docs/logging.rst: its loggers and fields are those that there are, and its examples run."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from gnsq_like.runtime.user_code import FailureLog
from tests.support.pages import blocks, page
from tests.support.scripts import run_script

PAGE = page("logging.rst")


def test_the_line_of_a_failure_looks_like_that(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logging.getLogger("gnsq_like.reader.handlers"))
    for level, rest in (("ERROR", ""), ("WARNING", "; number 2 of these within a minute")):
        shown = re.search(rf"^    ({level} .*)$", PAGE, re.MULTILINE)
        assert shown
        try:
            raise ValueError("no such user")
        except ValueError as exc:
            failures.log("it failed", exc)
        line = caplog.messages[-1].removeprefix("it failed")
        assert re.sub(r"\(.*", "", line) in shown[1]
        assert shown[1].endswith(f"in store){rest}")
        assert line.endswith(f"){rest}")


@pytest.mark.commands
def test_the_examples_run() -> None:
    examples = blocks(PAGE)
    assert len(examples) == 4
    for example in examples:
        assert run_script(example.replace("handlers=[handler]", "handlers=[handler], force=True")) == []


#: After an example: a handler fails twice.
FAILING = """
import gevent
from gnsq_like import Reader
from gnsq_like.testing import running_nsqd

def store(message):
    raise ValueError("no such user")

with running_nsqd() as nsqd:
    for _ in range(2):
        nsqd.publish("clicks", b"x")
    options = dict(max_backoff_duration=0, default_requeue_delay=60)
    with Reader("clicks", "archive", store, nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
        with gevent.Timeout(60):
            while reader.stats()["failed"] < 2:
                gevent.sleep(0.01)
"""


@pytest.mark.commands
def test_sentry_has_an_event_with_the_place_for_the_first_failure() -> None:
    example = next(each for each in blocks(PAGE) if "sentry_sdk" in each)
    example = example.replace("init(", "init(transport=Kept, before_send=keep, ")
    code = f"""
import json
from sentry_sdk.transport import Transport

class Kept(Transport):
    def capture_envelope(self, envelope):
        pass

def keep(event, hint):
    kept.append(event)

kept = []
{example}
logging.getLogger().setLevel(logging.CRITICAL)
logging.getLogger().handlers[0].setLevel(logging.CRITICAL)
logging.getLogger("gnsq_like").setLevel(logging.INFO)
{FAILING}
for event in kept:
    [raised] = event["exception"]["values"]
    extra = {{name: event["extra"][name] for name in ("topic", "channel", "attempts")}}
    print(json.dumps([event["level"], raised["type"], raised["stacktrace"]["frames"][-1]["function"], extra]))
"""
    [line] = run_script(code)
    fields = {"topic": "clicks", "channel": "archive", "attempts": 1}
    assert json.loads(line) == ["error", "ValueError", "store", fields]


@pytest.mark.commands
def test_structlog_renders_fields_and_traceback() -> None:
    example = next(each for each in blocks(PAGE) if "import structlog" in each)
    example = example.replace("StreamHandler()", "StreamHandler(sys.stdout)").replace("level=", "force=True, level=")
    records = [json.loads(line) for line in run_script(f"import sys\n{example}\n{FAILING}")]
    failed = [each for each in records if each["logger"] == "gnsq_like.reader.handlers"]
    assert [each["level"] for each in failed] == ["error", "warning"]
    assert {(each["topic"], each["channel"], each["attempts"]) for each in failed} == {("clicks", "archive", 1)}
    [raised] = failed[0]["exception"]
    assert (raised["exc_type"], raised["frames"][-1]["name"]) == ("ValueError", "store")
    assert "exception" not in failed[1]


def test_the_filter_lets_one_topic_pass() -> None:
    namespace: dict[str, Any] = {}
    example = next(each for each in blocks(PAGE) if "addFilter" in each)
    exec(example.partition("handler =")[0], namespace)
    record = logging.makeLogRecord({"topic": "clicks"})
    assert namespace["of_clicks"](record)
    assert not namespace["of_clicks"](logging.makeLogRecord({"topic": "other"}))
    assert not namespace["of_clicks"](logging.makeLogRecord({}))
