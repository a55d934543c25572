"""``gnsq-like topic``, against daemons of both kinds."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.support import tools
from tests.support.commands import PATIENCE
from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.tools import NOBODY, fill, invoke, running_tool

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


def backlog_of(nsqd: Running) -> int:
    with NsqdHTTPClient(nsqd.http_address) as http:
        return sum(channel["depth"] for channel in http.stats("clicks")["topics"][0]["channels"])


@contextmanager
def cluster(kind: Any) -> Iterator[tuple[list[Running], str]]:
    """Two nsqds that have the topic "clicks", and the flag that names their nsqlookupd."""
    with running_nsqlookupd(kind) as lookupd:
        options = {"lookupd_tcp_addresses": [lookupd.tcp_address], "broadcast_address": "127.0.0.1"}
        with running_nsqd(kind, **options) as one, running_nsqd(kind, **options) as two:
            fill(one, "clicks", [b"1", b"2"], "archive")
            # A topic starts when nsqlookupd has named its channels: before the other nsqd has more of them.
            wait_for(lambda: backlog_of(one) == 2)
            fill(two, "clicks", [b"3"], "archive", "mails")
            with LookupdClient(lookupd.http_address) as client:

                def is_known() -> bool:
                    found = client.lookup("clicks", missing_ok=True)
                    return len(found.producers) == 2 and len(found.channels) == 2

                wait_for(is_known)
            yield [one, two], f"--lookupd-http-address={lookupd.http_address}"


def is_paused(nsqd: Running) -> bool:
    with NsqdHTTPClient(nsqd.http_address) as http:
        return bool(http.stats("clicks")["topics"][0]["paused"])


printed = partial(tools.printed, "topic")
failed = partial(tools.failed, "topic")


@both
def test_a_topic_of_two_nsqds(kind: Any) -> None:
    with cluster(kind) as (nsqds, where):
        [listed] = json.loads(printed("list", "--json", where))
        assert (listed["topic_name"], listed["message_count"]) == ("clicks", 3)
        assert [each["channel_name"] for each in listed["channels"]] == ["archive", "mails"]
        assert sorted(each["node"] for each in listed["nodes"]) == sorted(each.http_address for each in nsqds)
        heading, row = printed("list", where).splitlines()
        assert heading.split() == ["TOPIC", "DEPTH", "BACKLOG", "MESSAGES", "CHANNELS", "NSQDS", "PAUSED"]
        assert row.split() == ["clicks", "0", "4", "3", "2", "2", "no"]
        shown = json.loads(printed("show", "clicks", "-json", where))
        assert shown["channels"][0]["depth"] == 3
        [first] = [each for each in shown["nodes"] if each["node"] == nsqds[0].http_address]
        assert first["message_count"] == 2
        assert "clicks: 3 messages, 0 in no channel yet" in printed("show", "clicks", where)

        assert printed("pause", "clicks", where) == "topic clicks: paused at 2 nsqds\n"
        assert all(map(is_paused, nsqds))
        assert printed("unpause", "clicks", where) == "topic clicks: unpaused at 2 nsqds\n"
        assert not any(map(is_paused, nsqds))

        error = failed("delete", "clicks", where, data=b"n\n")
        assert "Delete topic clicks with 2 channels and 4 messages on 2 nsqds?" in error
        assert error.endswith("Error: not confirmed\n")
        assert "--yes" in failed("delete", "clicks", where)  # stdin is at its end
        assert json.loads(printed("list", "--json", where)) == [listed]
        assert printed("delete", "clicks", "--yes", where) == "topic clicks: deleted at 2 nsqds and 1 nsqlookupd\n"
        assert json.loads(printed("list", "--json", where)) == []
        assert "there is no topic clicks" in failed("delete", "clicks", "--yes", where)
        assert printed("create", "new", where) == "topic new: created at 1 nsqlookupd\n"
        assert [each["topic_name"] for each in json.loads(printed("list", "--json", where))] == ["new"]
        assert "there is no topic new on any nsqd" in failed("pause", "new", where)


@both
def test_without_nsqlookupds(kind: Any) -> None:
    with running_nsqd(kind) as one, running_nsqd(kind) as two:
        fill(one, "clicks", [b"1", b"2"])
        where = [f"-nsqd-http-address={each.http_address}" for each in (one, two)]
        assert printed("empty", "clicks", "-y", *where) == "topic clicks: emptied at 1 nsqd\n"
        assert json.loads(printed("list", "--json", *where))[0]["depth"] == 0
        assert printed("create", "clicks", *where) == "topic clicks: created at 2 nsqds\n"
        done = invoke("topic", "delete", "clicks", *where, data=b"y\n")
        assert done.stdout == "topic clicks: deleted at 2 nsqds\n"
        assert "there is no topic clicks" in failed("show", "clicks", *where)


def test_one_of_two_nsqds_does_not_answer() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [])
        where = [f"--nsqd-http-address={each}" for each in (nsqd.http_address, NOBODY)]
        done = invoke("topic", "list", "--json", *where)
        assert (done.exit_code, len(json.loads(done.stdout))) == (0, 1)
        assert done.stderr.startswith(f"Warning: http://{NOBODY}/")
        done = invoke("topic", "pause", "clicks", *where)
        assert (done.exit_code, done.stdout) == (1, "topic clicks: paused at 1 nsqd\n")
        assert done.stderr.startswith(f"Error: http://{NOBODY}/")


def test_nobody_answers() -> None:
    for where in (f"--nsqd-http-address={NOBODY}", f"--lookupd-http-address={NOBODY}"):
        error = failed("delete", "clicks", "--yes", where)
        assert error.startswith(f"Error: http://{NOBODY}/")
        assert len(error.splitlines()) == 1


def test_a_signal_while_a_daemon_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        where = f"--nsqd-http-address=127.0.0.1:{silent.getsockname()[1]}"
        with running_tool("topic", "list", where, "--http-client-request-timeout=1h") as tool:
            connection, _ = silent.accept()
            with connection:
                assert tool.end(signal.SIGINT) == 130
            assert (tool.out, tool.err) == (b"", "")
