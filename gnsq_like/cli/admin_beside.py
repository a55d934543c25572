"""``--admin`` of other commands: an admin for the daemons that they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

from gnsq_like.cli.exits import CannotRun
from gnsq_like.cli.tool_options import Integer

_F = TypeVar("_F", bound=Callable[..., object])

#: nsqadmin's usual port.
PORT = 4171


def admin_option(function: _F) -> _F:
    """A decorator: the option ``--admin``."""
    return click.option(
        "--admin",
        "admin_port",
        type=Integer(0, 65535),
        is_flag=False,
        flag_value=PORT,
        default=None,
        metavar="[PORT]",
        help=f"Show the daemons in a browser, too, at this port of the loopback address: {PORT} by default, 0: any.",
    )(function)


@contextmanager
def admin_beside(port: int | None, lookupds: Sequence[str], show: Callable[[str], object]) -> Iterator[None]:
    """Context manager: an admin in this process, in front of these nsqlookupds; nothing without a port.

    :param show: gets the line with its address
    """
    if port is None:
        yield
        return
    try:
        from gnsq_like.admin import AdminServer
    except ModuleNotFoundError as exc:
        raise CannotRun(f"{exc}.") from None
    server = AdminServer(http_address=f"127.0.0.1:{port}", lookupd_http_addresses=tuple(lookupds))
    try:
        server.start()
    except OSError as exc:
        raise CannotRun(f"--admin: {exc.strerror}.") from None
    try:
        show(f"nsqadmin: http://{server.http_address}/")
        yield
    finally:
        server.stop()
