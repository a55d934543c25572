"""``gnsq-like to-nsq`` as a process, beside NSQ's own."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.tools import (
    counts,
    fill,
    go_tool,
    numbered,
    running_tool,
    taken,
    unfinished,
    wait_until_in_channels,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


def flags(source: Running, *destinations: Running | str) -> list[str]:
    addresses = [each if isinstance(each, str) else each.tcp_address for each in destinations]
    to = [f"-destination-nsqd-tcp-address={address}" for address in addresses]
    return ["-topic=t", f"-nsqd-tcp-address={source.tcp_address}", *to]


def wait_until_passed_on(source: Running, count: int) -> None:
    """Wait until the tool that runs has finished so many messages."""
    wait_for(lambda: counts(source, "t", "nsq_to_nsq")["finished"] == count)


def all_taken(nsqd: Running, topic: str) -> list[bytes]:
    """The bodies of all messages that nsqd has confirmed: from the topic, they go to the channel a moment later."""
    wait_until_in_channels(nsqd, topic)
    return taken(nsqd, topic, counts(nsqd, topic, "check")["depth"])


@both
def test_every_message_goes_to_one_destination(kind: Any) -> None:
    bodies = numbered(3000)
    with running_nsqd(kind) as source, running_nsqd(kind) as one, running_nsqd(kind) as two:
        fill(source, "t", bodies, "nsq_to_nsq")
        for nsqd in (one, two):
            fill(nsqd, "t", [], "check")
        with running_tool("to-nsq", *flags(source, one, two), "-status-every=1000") as tool:
            wait_until_passed_on(source, len(bodies))
            tool.wait_for_line(r"\[aggregate\]: finished 1000 - 99th: ")
            assert tool.end() == 0
        parts = [all_taken(nsqd, "t") for nsqd in (one, two)]
        assert sorted([*parts[0], *parts[1]]) == bodies
        assert min(map(len, parts)) > 1000


@both
def test_a_signal_in_the_middle(kind: Any) -> None:
    bodies = numbered(20_000)
    with running_nsqd(kind, mem_queue_size=30_000) as source, running_nsqd(kind, mem_queue_size=30_000) as there:
        fill(source, "t", bodies, "nsq_to_nsq")
        fill(there, "copies", [], "check")
        arguments = [*flags(source, there), "--destination-topic=copies", "--max-in-flight=20"]
        with running_tool("to-nsq", *arguments) as tool:
            wait_for(lambda: unfinished(source, "t", "nsq_to_nsq") < 19_000)
            assert tool.end() == 0
        left = unfinished(source, "t", "nsq_to_nsq")
        copied = all_taken(there, "copies")
        # Nothing is lost, and nothing is both here and there.
        assert len(set(copied)) == len(copied) == len(bodies) - left


@pytest.mark.real_nsqd
@pytest.mark.parametrize(
    "more",
    [
        [],
        ["-mode=round-robin"],
        ["-require-json-field=a"],
        ["-require-json-field=a", "-require-json-value=1"],
        ["-whitelist-json-field=b", "-whitelist-json-field=a", "-whitelist-json-field=x"],
    ],
)
def test_the_same_messages_give_those_of_nsq_to_nsq(more: list[str]) -> None:
    bodies = [b'{"a": 1, "b": [1.0, "x"]}', b'{"a": "1", "c": true}', b'{"a":1.0}', b'{"a":"one","b":null}', b"[]"]
    bodies += [b"not JSON", b"null"] if "value" not in "".join(more) else []
    passed: dict[str, list[bytes]] = {}
    with ExitStack() as stack:
        source = stack.enter_context(running_nsqd("real"))
        for name, command in (("theirs", [go_tool("nsq_to_nsq")]), ("ours", None)):
            there = stack.enter_context(running_nsqd("real"))
            fill(there, "t", [], "check")
            channel = f"{name}#ephemeral"
            arguments = [*flags(source, there), f"-channel={channel}", *more]
            started = running_tool(*arguments, command=command) if command else running_tool("to-nsq", *arguments)
            with started as tool:
                wait_for(lambda channel=channel: counts(source, "t", channel)["clients"])  # type: ignore[misc]
                fill(source, "t", bodies)

                def is_done(channel: str = channel) -> bool:
                    return counts(source, "t", channel)["finished"] == len(bodies)

                wait_for(is_done)
                assert tool.end() == 0
            passed[name] = all_taken(there, "t")
    assert sorted(passed["ours"]) == sorted(passed["theirs"])
