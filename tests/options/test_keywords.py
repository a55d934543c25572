"""The options as typed keywords: those of the option classes, and mypy knows them."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

from gnsq_like.options import ProducerOptions, ReaderOptions
from tests.support.keywords import PATH, ROOT, generate
from tests.support.scripts import run_beside

#: Values for options whose default is made at run time.
TEXTS = ("client_id", "hostname", "user_agent")


def every_option(options: type) -> str:
    """Keyword arguments with every option; the values are the defaults."""
    values = {each.name: "x" if each.name in TEXTS else each.default for each in fields(options)}
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


PROGRAM = f"""
from typing import TypedDict, Unpack

from gnsq_like import Message, NsqdNode, Producer, Reader, ReaderArguments
from gnsq_like.options import ReaderOptionsDict


def handler(message: Message) -> None: ...
def on_failure(message: Message, exception: BaseException) -> None: ...
def on_disconnect(address: str, error: Exception | None) -> None: ...
def only_local(node: NsqdNode) -> bool: return node.broadcast_address == "localhost"


Producer("127.0.0.1:4150", {every_option(ProducerOptions)})
Reader("clicks", "archive", handler, nsqd_tcp_addresses="127.0.0.1:4150", {every_option(ReaderOptions)})
Reader("clicks", "archive", handler, on_failure=on_failure, on_disconnect=on_disconnect, discovery_filter=only_local,
    address_map={{"nsqd:4150": "127.0.0.1:4150"}}, auth_secret=lambda: "secret", backoff_strategy=lambda level: 1.0)


class Mine(TypedDict):
    max_in_flight: int


def reading(topic: str, **arguments: Unpack[ReaderArguments]) -> Reader:
    return Reader(topic, "archive", handler, **arguments)


mine: Mine = {{"max_in_flight": 5}}
options: ReaderOptionsDict = {{"max_in_flight": 5, "decoder": None}}
reading("clicks", nsqd_tcp_addresses=["127.0.0.1:4150"], on_failure=on_failure, **options)
reading("clicks", lookupd_http_addresses="127.0.0.1:4161", **mine)
"""


def errors_in(text: str, path: Path) -> str:
    """The errors that mypy finds in a program."""
    path.write_text(text)
    # With the configuration and the cache of make lint, which is strict for a program outside tests/.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    return run_beside(command, cwd=ROOT).stdout


def test_the_file_is_the_one_that_is_made() -> None:
    assert PATH.read_text() == generate(), "run python -m tests.support.keywords"


def test_mypy_knows_every_option(tmp_path: Path) -> None:
    assert errors_in(PROGRAM, tmp_path / "program.py") == ""


def test_mypy_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = {
        "Reader('t', 'c', max_inflight=200)": '"max_inflight" for "Reader"',
        "Reader('t', 'c', max_age='3600')": 'incompatible type "str"',
        "Producer('127.0.0.1:4150', encoder='jsn')": "incompatible type",
        "reading('t', on_fail=1)": '"on_fail" for',
    }
    found = errors_in("\n".join((PROGRAM, *wrong)), tmp_path / "program.py")
    first = PROGRAM.count("\n") + 2
    for number, error in enumerate(wrong.values(), first):
        assert re.search(rf":{number}: error: .*{re.escape(error)}", found), found
