"""``gnsq-like channel``, against daemons of both kinds."""

import json
from functools import partial
from typing import Any

import pytest

from gnsq_like import Reader
from tests.support import tools
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.tools import counts, fill

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


printed = partial(tools.printed, "channel")
failed = partial(tools.failed, "channel")


@both
def test_a_channel_of_two_nsqds(kind: Any) -> None:
    with running_nsqd(kind) as one, running_nsqd(kind) as two:
        fill(one, "clicks", [b"1", b"2"], "archive", "mails")
        fill(two, "clicks", [b"3"], "archive")
        where = [f"--nsqd-http-address={each.http_address}" for each in (one, two)]
        heading, *rows = printed("list", "clicks", *where).splitlines()
        assert heading.split()[:3] == ["CHANNEL", "DEPTH", "IN"]
        assert [row.split()[:2] for row in rows] == [["archive", "3"], ["mails", "2"]]
        names = [each["channel_name"] for each in json.loads(printed("list", "clicks", "--json", *where))]
        assert names == ["archive", "mails"]
        last = printed("show", "clicks", "archive", *where).splitlines()[-1]
        assert last.split() == ["all", "3", "0", "0", "0", "0", "3", "0", "no"]

        assert printed("pause", "clicks", "mails", *where) == "channel clicks/mails: paused at 1 nsqd\n"
        assert json.loads(printed("show", "clicks", "mails", "--json", *where))["paused"] is True
        assert printed("unpause", "clicks", "mails", *where) == "channel clicks/mails: unpaused at 1 nsqd\n"
        assert json.loads(printed("show", "clicks", "mails", "--json", *where))["paused"] is False

        question = failed("empty", "clicks", "archive", *where, data=b"no\n")
        assert "Drop all messages of channel clicks/archive with 3 messages and 0 consumers?" in question
        assert counts(one, "clicks", "archive")["depth"] == 2
        assert printed("empty", "clicks", "archive", "--yes", *where) == "channel clicks/archive: emptied at 2 nsqds\n"
        assert counts(one, "clicks", "archive")["depth"] == counts(two, "clicks", "archive")["depth"] == 0
        assert counts(one, "clicks", "mails")["depth"] == 2

        assert "Delete channel clicks/mails with 2 messages" in failed("delete", "clicks", "mails", *where, data=b"\n")
        assert printed("delete", "clicks", "mails", "-yes", *where) == "channel clicks/mails: deleted at 1 nsqd\n"
        assert "there is no channel clicks/mails" in failed("show", "clicks", "mails", *where)
        assert "there is no channel clicks/mails" in failed("delete", "clicks", "mails", "--yes", *where)
        assert "there is no topic other" in failed("list", "other", *where)
        assert printed("create", "other", "first", *where) == "channel other/first: created at 2 nsqds\n"


@both
def test_registered_and_deleted_at_a_nsqlookupd(kind: Any) -> None:
    with running_nsqlookupd(kind) as lookupd:
        where = f"--lookupd-http-address={lookupd.http_address}"
        assert printed("create", "clicks", "archive", where) == "channel clicks/archive: created at 1 nsqlookupd\n"
        done = printed("delete", "clicks", "archive", "--yes", where)
        assert done == "channel clicks/archive: deleted at 1 nsqlookupd\n"
        assert "there is no channel clicks/archive" in failed("delete", "clicks", "archive", "--yes", where)


def test_the_consumers_of_a_channel() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [], "archive")
        where = f"--nsqd-http-address={nsqd.http_address}"
        reader = Reader("clicks", "archive", lambda m: None, nsqd_tcp_addresses=nsqd.tcp_address, client_id="worker-7")
        with reader:
            wait_for(lambda: counts(nsqd, "clicks", "archive")["clients"] == 1)
            [client] = json.loads(printed("show", "clicks", "archive", "--json", where))["clients"]
            assert (client["client_id"], client["node"]) == ("worker-7", nsqd.http_address)
            assert "worker-7" in printed("show", "clicks", "archive", where)
