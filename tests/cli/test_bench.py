"""``gnsq-like bench`` as a process, against daemons of both kinds."""

import json
import signal
from functools import partial
from typing import Any

import pytest

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.testing import wait_until
from tests.support import tools
from tests.support.commands import PATIENCE
from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd
from tests.support.tools import NOBODY, fill, run_tool, running_tool, unfinished

pytestmark = pytest.mark.commands

SHORT = ["--duration=300ms", "--greenlets=10"]


def topics_of(nsqd: Running) -> list[str]:
    with NsqdHTTPClient(nsqd.http_address) as http:
        return [each["topic_name"] for each in http.stats()["topics"]]


failed = partial(tools.failed, "bench")


@pytest.mark.parametrize("kind", KINDS)
def test_all_stages_on_two_nsqds(kind: Any) -> None:
    with running_nsqlookupd(kind) as lookupd:
        options = {"lookupd_tcp_addresses": [lookupd.tcp_address], "broadcast_address": "127.0.0.1"}
        with running_nsqd(kind, **options) as one, running_nsqd(kind, **options) as two:
            with LookupdClient(lookupd.http_address) as client:
                wait_until(lambda: len(client.nodes()) == 2, PATIENCE)
                address = f"--lookupd-http-address={lookupd.http_address}"
                done = run_tool("bench", address, "--json", "--size=100", *SHORT)
                assert (done.returncode, done.stderr) == (0, b"")
                publish, consume, both = json.loads(done.stdout)
                assert [each["stage"] for each in (publish, consume, both)] == ["publish", "consume", "end to end"]
                for each in (publish, consume, both):
                    assert each["messages"] > 0
                    assert each["size"] == 100
                assert consume["messages"] <= publish["messages"]
                assert consume["latency_seconds"] is None
                for each in (publish, both):
                    found = each["latency_seconds"]
                    assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["p999"] <= found["max"]
                    assert each["rate"] == pytest.approx(each["messages"] / each["seconds"])
                # Nothing is left, neither at the nsqds nor at nsqlookupd.
                assert topics_of(one) == topics_of(two) == client.topics() == []

            done = run_tool("bench", address, "-stage=end-to-end", "-topic=mine", "-batching", *SHORT)
            assert (done.returncode, done.stderr) == (0, b"")
            heading, row = done.stdout.decode().splitlines()
            assert heading.split()[:4] == ["STAGE", "MESSAGES", "SECONDS", "RATE/S"]
            assert row.startswith("end to end ")


def test_a_topic_that_exists_is_not_touched() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        error = failed("--topic=clicks", f"--nsqd-http-address={nsqd.http_address}", *SHORT)
        assert error.startswith("Error: topic clicks exists;")
        assert unfinished(nsqd, "clicks", "archive") == 1
        # Where a daemon does not answer, the topic may be there.
        error = failed(f"--nsqd-http-address={nsqd.http_address}", f"--nsqd-http-address={NOBODY}", *SHORT)
        assert error.startswith(f"Error: http://{NOBODY}/")
        assert topics_of(nsqd) == ["clicks"]


def test_a_signal_in_the_middle_leaves_no_topic() -> None:
    with running_nsqd() as nsqd:
        address = f"--nsqd-http-address={nsqd.http_address}"
        with running_tool("bench", address, "--duration=1h", "--stage=publish", "--size=24") as tool:

            def has_messages() -> bool:
                with NsqdHTTPClient(nsqd.http_address) as http:
                    return any(each["message_count"] for each in http.stats()["topics"])

            wait_until(has_messages, PATIENCE)
            assert tool.end(signal.SIGINT) == 130
            assert (tool.out, tool.err) == (b"", "")
        assert topics_of(nsqd) == []


def test_nsqlookupds_without_an_nsqd() -> None:
    with running_nsqlookupd() as lookupd:
        error = failed(f"--lookupd-http-address={lookupd.http_address}", *SHORT)
        assert error == "Error: the nsqlookupds know no nsqd\n"
