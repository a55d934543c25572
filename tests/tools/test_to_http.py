"""What messages become as requests, and options that do not go together."""

from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like.cli.to_http import _MODES
from gnsq_like.errors import InvalidOption
from gnsq_like.tools.sources import Source
from gnsq_like.tools.to_http import HTTP_MODES, Requests, parse_header, post_topic
from tests.support.daemons import running_nsqd, wait_for
from tests.support.scripted_http import always, response, scripted
from tests.support.tools import counts, fill, numbered


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"method": "GET", "urls": ["http://h/x"]}, "get"),
        ({"method": "GET", "urls": ["http://h/%s/%s"]}, "get"),
        ({"method": "POST", "urls": ["h/x"]}, "post"),
        ({"method": "POST", "urls": ["ftp://h/x"]}, "post"),
        ({"method": "POST", "urls": []}, "post"),
    ],
)
def test_wrong_urls(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Requests(**options)
    assert caught.value.option == option


def test_headers() -> None:
    assert parse_header("A: b: c ") == ("A", "b: c")
    for text in ("A", "A:", ": b", "A: b\nC: d"):
        with pytest.raises(InvalidOption, match="header"):
            parse_header(text)


def test_the_command_knows_all_modes() -> None:
    assert set(_MODES) == set(HTTP_MODES)


def test_a_sample_is_sent_and_the_rest_finished() -> None:
    drawn = [0]

    def draw() -> float:
        drawn[0] += 1
        return drawn[0] % 4 / 4

    stop = Event()
    with running_nsqd() as nsqd, scripted(always(response())) as server:
        fill(nsqd, "t", numbered(100), "to-http")
        source = Source((nsqd.tcp_address,), options={"max_in_flight": 10})
        requests = Requests("POST", [f"http://{server.address}/"])
        sending = gevent.spawn(lambda: post_topic(source, "t", requests, stop=stop, sample=0.5, draw=draw))
        wait_for(lambda: counts(nsqd, "t", "to-http")["depth"] == 0 and drawn == [100])
        stop.set()
        assert sending.get(timeout=30) == len(server.asked) == 50
