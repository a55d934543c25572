"""The table ``[watch]`` of a pipeline's file: where its status is served, and what is wrong with a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from gnsq_like.addresses import parse_address
from gnsq_like.errors import UsageError
from gnsq_like.spark.options import duration, number, option, words


def _address(value: str) -> str:
    if value:
        parse_address(value, to_listen=True)
    return value


def _above_zero(read: Callable[[str], float]) -> Callable[[str], float]:
    def checked(value: str) -> float:
        found = read(value)
        if found <= 0:
            raise UsageError("it must be above 0")
        return found

    return checked


def _share(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise UsageError("it must be a number from 0 to less than 1, as 0.05 for 5 %")
    return found


def _urls(value: str) -> tuple[str, ...]:
    urls = words(value)
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UsageError("it must begin with http:// or https://")
    return urls


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How a run is watched. A threshold that is None is never passed."""

    #: "host:port" (port 0: any free one) of the page, ``/metrics``, ``/healthz`` and ``/status``; empty for none.
    http_address: str = option(_address, "")
    #: Seconds by which the table may be behind.
    lag: float | None = option(_above_zero(duration), None)
    #: Messages that may wait in all nsqds together.
    depth: int | None = option(number(0), None)
    #: The share of messages, over ``window``, that may be rejected.
    rejected: float | None = option(_share, None)
    #: Seconds for which it may be that nothing comes.
    nothing_for: float | None = option(_above_zero(duration), None)
    #: Seconds over which latency and the share of rejected messages are taken.
    window: float = option(_above_zero(duration), 300.0)
    #: URLs that get a POST when something begins or ceases to be wrong.
    webhook: tuple[str, ...] = option(_urls, ())
