"""Publishes from an asyncio event loop, which nothing here blocks.

The loop's thread passes the publish to the thread of the connections, which settles it and wakes the loop by
``call_soon_threadsafe``. asyncio is imported at the first call: programs without it need not load it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gevent import Greenlet, getcurrent, monkey

from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.producer.publish import Publish
from gnsq_like.producer.result import GRACE, withdraw
from gnsq_like.runtime.hub_calls import HubHandle


async def publish_from_loop(
    begin: Callable[[Publish, float], object], publish: Publish, now: float, hub_handle: HubHandle
) -> None:
    """Have ``begin`` called in the thread of the connections, and await the outcome.

    :param now: monotonic time
    :raises PublishError: if it is not confirmed
    :raises UsageError: in a greenlet of a patched process: asyncio has one loop in a thread, so that others fail
    """
    import asyncio

    if monkey.is_module_patched("threading") and isinstance(getcurrent(), Greenlet):
        raise UsageError(
            "apublish() was called in a greenlet of a monkey-patched process, such as a gevent worker of gunicorn, "
            "where a second event loop beside this one fails; call publish() in a plain function: other greenlets run "
            "while it waits"
        )
    if hub_handle.here and not monkey.is_module_patched("select"):
        raise InvalidOption(
            "own_thread",
            False,
            "apublish() needs the connections in another thread, because the event loop keeps this one",
        )
    loop = asyncio.get_running_loop()
    settled = loop.create_future()

    def settle() -> None:
        if not settled.done():
            settled.set_result(None)

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle)

    publish.link(wake)
    hub_handle.call(begin, publish, now)
    timer = loop.call_later(publish.deadline - now, lambda: loop.call_later(GRACE, settle))
    try:
        await settled
    except BaseException:
        publish.forget()  # now: the other thread may be about to send it
        hub_handle.call(publish.abandon)
        raise
    finally:
        timer.cancel()
    withdraw(publish, hub_handle)
    if publish.error is not None:
        raise publish.error.with_traceback(None)
