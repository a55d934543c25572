"""Readers in an ASGI server: started with each of its processes, stopped before that ends.

For an application without a lifespan of its own, such as Django's::

    application = with_readers(get_asgi_application(), "gnsq_like.contrib.django:make_readers")

In the lifespan of another, such as Starlette's and FastAPI's::

    @asynccontextmanager
    async def lifespan(app):
        async with consuming(make_readers):
            yield

The Readers have a thread of their own, which the event loop does not delay. Handlers are plain functions. uvicorn and
hypercorn support the lifespan, daphne does not: there, run the readers as a separate process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gnsq_like import Reader, ReaderGroup
from gnsq_like.contrib.shared.declared import readers_of

_Scope = MutableMapping[str, object]
_Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

#: Returns the Readers of a process, not started; or its name as "module:name", which is imported when it is needed.
MakeReaders = Callable[[], Iterable[Reader]] | str


@asynccontextmanager
async def consuming(source: MakeReaders, *, stop_timeout: float = 30.0) -> AsyncIterator[ReaderGroup]:
    """Run Readers during the block, in a thread of their own. Does not block the event loop.

    :param source: a function that returns the Readers, not started; or its name as "module:name"
    :param stop_timeout: seconds for running handlers at the end; the server must not be killed earlier
    :raises NSQError: if one cannot be started
    """
    group = ReaderGroup(*readers_of(source), stop_timeout=stop_timeout, own_thread=True)
    await asyncio.to_thread(group.start)
    try:
        yield group
    finally:
        # Also if this task is cancelled meanwhile, as by an impatient server.
        await asyncio.shield(asyncio.to_thread(group.stop, stop_timeout))


def with_readers(application: Application, source: MakeReaders, *, stop_timeout: float = 30.0) -> Application:
    """``application`` with a lifespan, during which Readers run; for the parameters see :func:`consuming`.

    The application itself does not see the lifespan events. If a Reader cannot be started, the server does not start.
    """

    async def served(scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send, source, stop_timeout)
        else:
            await application(scope, receive, send)

    return served


async def _lifespan(receive: _Receive, send: _Send, source: MakeReaders, stop_timeout: float) -> None:
    await receive()  # lifespan.startup
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(consuming(source, stop_timeout=stop_timeout))
        except Exception as exc:
            # If this were raised, the server would assume that there is no lifespan, and continue without readers.
            await send({"type": "lifespan.startup.failed", "message": f"the readers cannot be started: {exc!r}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
    await send({"type": "lifespan.shutdown.complete"})
