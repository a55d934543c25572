"""The options as typed keywords: those of the option classes. What mypy finds wrong here, ``make lint`` checks: an
ignored error that it no longer finds is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import pytest

from gnsq_like import Batch, Message, Producer, Reader, ReaderArguments
from gnsq_like.errors import InvalidBody, InvalidOption
from gnsq_like.options import ConnectionOptionsDict, ReaderOptionsDict
from tests.support.keywords import PATH, generate

if TYPE_CHECKING:
    from gnsq_like.producer.producer import PublishResult

ADDRESS = "127.0.0.1:4150"


def test_the_file_is_the_one_that_is_made() -> None:
    assert PATH.read_text() == generate(), "run make generate, or .venv/test/bin/python -m tests.support.keywords"


def test_dicts_of_options_fit_readers_and_producers() -> None:
    connection: ConnectionOptionsDict = {"tls_v1": "prefer", "auth_secret": lambda: "secret", "msg_timeout": 30}
    options: ReaderOptionsDict = {"max_in_flight": 5, "decoder": None}
    arguments: ReaderArguments = {"nsqd_tcp_addresses": [ADDRESS], "on_error": print, "max_age": 60}
    assert Reader("clicks", "archive", print, nsqd_tcp_addresses=[ADDRESS], **options).max_in_flight == 5
    Reader("clicks", "archive", print, **arguments)
    Producer(ADDRESS, encoder="json", batching=True, **connection)


def test_wrong_keywords_are_wrong_for_type_checkers_too() -> None:
    with pytest.raises(InvalidOption, match="did you mean max_in_flight"):
        Reader("clicks", "archive", print, nsqd_tcp_addresses=ADDRESS, max_inflight=200)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="max_age"):
        Reader("clicks", "archive", print, nsqd_tcp_addresses=ADDRESS, max_age="3600")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="encoder"):
        Producer(ADDRESS, encoder="jsn")  # type: ignore[call-overload]
    arguments: ReaderArguments = {"on_fail": print}  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidOption, match="on_fail"):
        Reader("clicks", "archive", print, **arguments)


def test_what_is_published_and_called_is_checked_by_type_checkers_too() -> None:
    """A Producer is generic in what its encoder takes; without one it takes bytes."""
    plain = Producer(ADDRESS)
    with pytest.raises(InvalidBody):
        plain.publish("t", "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidBody):
        plain.publish("t", {"user": 7})  # type: ignore[arg-type]
    with pytest.raises(InvalidBody):
        plain.multi_publish("t", b"abc")  # type: ignore[arg-type]
    plain.check("t", bytearray(b"x"))
    assert_type(Producer(ADDRESS, encoder="json"), Producer[Any])
    texts = Producer(ADDRESS, encoder=str.encode)
    assert_type(texts, Producer[str])
    texts.check("t", "text")
    with pytest.raises(InvalidBody):
        texts.check("t", b"x")  # type: ignore[arg-type]


def result_of(producer: Producer) -> PublishResult:
    result = producer.publish_async("t", b"x")
    assert_type(result.ready(), bool)
    return result


async def later(message: Message) -> None:
    """Its work would never be done."""


def nothing() -> None:
    """It cannot take a message."""


def test_handlers_that_cannot_work_are_wrong_for_type_checkers_too() -> None:
    with pytest.raises(InvalidOption, match="an async def function"):
        Reader("clicks", "archive", later, nsqd_tcp_addresses=ADDRESS)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="cannot be called with 1 positional argument"):
        Reader("clicks", "archive", nothing, nsqd_tcp_addresses=ADDRESS)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="cannot be called with 1 positional argument"):
        Batch(nothing)  # type: ignore[arg-type]
