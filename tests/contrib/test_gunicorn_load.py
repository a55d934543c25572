"""SIGTERM and SIGHUP of gunicorn under load: each answer is a message, and each request that was begun is answered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like import Reader
from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.web import CONF, WORKER_KINDS, WORKERS, Consumed, Load, gunicorn, wait_until_all_is_finished

pytestmark = pytest.mark.servers


@pytest.fixture(params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


@pytest.mark.parametrize("kind", WORKER_KINDS)
def test_sigterm_under_load_loses_nothing_and_drops_no_accepted_request(
    tmp_path: Path, nsqd: Running, kind: str
) -> None:
    consumed = Consumed()
    with (
        gunicorn(tmp_path, *WORKERS[kind], conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
        Reader("clicks", "archive", consumed.handle, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=500),
    ):
        load = Load(50, server.port)
        wait_for(lambda: len(load.answers.ok) > 500, "500 answers")
        assert server.end() == 0
        answers = load.join()
        assert answers.other == []
        # A request that was in the listen backlog is reset by the kernel: no worker has seen it.
        assert sorted(server.noted("began")) == sorted(answers.ok)
        wait_for(lambda: len(consumed) >= len(answers.ok), "all messages")
        wait_until_all_is_finished(nsqd, "clicks")
    assert consumed == dict.fromkeys(answers.ok, 1)
