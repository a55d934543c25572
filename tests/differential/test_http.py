"""Random HTTP requests to our daemons and NSQ's: the answers are the same, and so is what they leave behind."""

import json
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.differential import random_http
from tests.differential.both import Both, both, compare, how_many
from tests.support.daemons import wait_for
from tests.support.raw import Response, exchange, stats

pytestmark = [pytest.mark.real_nsqd, pytest.mark.timeout(3600)]

#: Connections, with one to three requests each; nsqlookupd, which has less to compare, gets a quarter of them.
REQUESTS = how_many("GNSQ_LIKE_HTTP_REQUESTS", 400)
#: How often the states are compared.
ROUND = 250

#: What may differ: the time, and how the length of the body is given.
NOT_COMPARED = {"date", "content-length", "transfer-encoding"}


def comparable(responses: list[Response], asked: random_http.Exchange) -> list[Any]:
    found: list[Any] = []
    answered = [response for response in responses if response.status != 100]
    for index, response in enumerate(answered):
        fields = {name: value for name, value in response.fields.items() if name not in NOT_COMPARED}
        if not asked.has_stable_end:
            fields.pop("connection", None)
        is_stable = index < len(asked.stable) and asked.stable[index]
        if response.status == 301:  # Go adds a page for people, which no browser shows
            fields = {name: value for name, value in fields.items() if not name.startswith("content-")}
            is_stable = False
        found.append((response.status_line, fields, _unordered(response) if is_stable else None))
    return found


def _unordered(response: Response) -> Any:
    """nsqlookupd's lists have the order of a map in Go."""
    if not response.body.startswith(b"{"):
        return response.body
    return {
        name: sorted(value, key=str) if type(value) is list else value
        for name, value in json.loads(response.body).items()
    }


def ask(routes: list[random_http.Route], random: Random, daemons: Both) -> tuple[str, object, object]:
    asked = random_http.exchange(random, routes)
    ours, real = (
        comparable(exchange(daemon.http_address, asked.sent, *asked.methods), asked)
        for daemon in (daemons.ours, daemons.real)
    )
    return repr(asked.sent), ours, real


def topics(nsqd: Any) -> Any:
    """What is in an nsqd; where a message waits, in its topic or in its channel, is a matter of time."""
    return {
        topic["topic_name"]: (
            topic["message_count"],
            topic["message_bytes"],
            topic["paused"],
            0 if topic["channels"] else topic["depth"],
            {
                channel["channel_name"]: (
                    channel["paused"],
                    topic["depth"] + channel["depth"] + channel["deferred_count"],
                )
                for channel in topic["channels"]
            },
        )
        for topic in stats(nsqd.http_address)["topics"]
    }


def test_nsqd() -> None:
    with both("nsqd") as daemons:
        for start in range(0, REQUESTS, ROUND):
            compare(daemons, min(ROUND, REQUESTS - start), f"nsqd {start}", partial(ask, random_http.NSQD))
            wait_for(lambda: topics(daemons.ours) == topics(daemons.real), "the same topics")


def test_nsqlookupd() -> None:
    with both("nsqlookupd") as daemons:
        compare(daemons, REQUESTS // 4, "nsqlookupd", partial(ask, random_http.NSQLOOKUPD))
