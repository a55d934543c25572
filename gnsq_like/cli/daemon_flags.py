"""Flags of the commands that ask daemons over HTTP: their addresses, timeouts and TLS."""

from __future__ import annotations

import functools
from typing import Any

import click
from click.core import ParameterSource

from gnsq_like.cli.tool_options import Duration, option, switch

_NSQDS, _LOOKUPDS = "nsqd_http_addresses", "lookupd_http_addresses"
_ALTERNATIVES = "--nsqd-http-address or --lookupd-http-address"


def asks_cluster(function: Any) -> Any:
    """A decorator: the command concerns the nsqds that nsqlookupds know, or given ones. It gets ``daemons``."""
    return _asks(function, _either)


def asks_lookupds(function: Any) -> Any:
    """A decorator: the command asks nsqlookupds only. It gets ``daemons``."""
    return _asks(function, _only_lookupds, nsqds=False)


def asks_each(function: Any) -> Any:
    """A decorator: the command asks daemons of both kinds. It gets ``daemons``."""
    return _asks(function, _any)


def _either(ctx: click.Context, given: dict[str, tuple[str, ...]]) -> None:
    _any(ctx, given)
    if given[_NSQDS] and given[_LOOKUPDS]:
        typed = [name for name in given if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if len(typed) == 2:
            raise click.UsageError(f"use {_ALTERNATIVES}, not both", ctx)
        given[_LOOKUPDS if typed == [_NSQDS] else _NSQDS] = ()


def _only_lookupds(ctx: click.Context, given: dict[str, tuple[str, ...]]) -> None:
    if not given[_LOOKUPDS]:
        raise click.UsageError("--lookupd-http-address required", ctx)


def _any(ctx: click.Context, given: dict[str, tuple[str, ...]]) -> None:
    if not any(given.values()):
        raise click.UsageError(f"{_ALTERNATIVES} required", ctx)


def _asks(function: Any, check: Any, *, nsqds: bool = True) -> Any:
    @functools.wraps(function)
    def command(
        *,
        nsqd_http_addresses: tuple[str, ...] = (),
        lookupd_http_addresses: tuple[str, ...],
        http_client_connect_timeout: float,
        http_client_request_timeout: float,
        http_client_tls_insecure_skip_verify: bool,
        http_client_tls_root_ca_file: str | None,
        http_client_tls_cert: str | None,
        http_client_tls_key: str | None,
        **values: Any,
    ) -> Any:
        ctx = click.get_current_context()
        given = {_NSQDS: nsqd_http_addresses, _LOOKUPDS: lookupd_http_addresses}
        check(ctx, given)
        if http_client_tls_key and not http_client_tls_cert:
            raise click.UsageError("--http-client-tls-key needs --http-client-tls-cert", ctx)

        from gnsq_like.tools.daemons import Daemons

        cert, key = http_client_tls_cert, http_client_tls_key
        options = {
            "timeout": http_client_request_timeout,
            "connect_timeout": http_client_connect_timeout,
            "verify": not http_client_tls_insecure_skip_verify and (http_client_tls_root_ca_file or True),
            "cert": (cert, key) if cert and key else cert,
        }
        return function(daemons=Daemons(given[_NSQDS], given[_LOOKUPDS], options), **values)

    seconds = Duration(above_zero=True)
    for add in (
        option("--http-client-tls-key", metavar="PATH", help="Its key, if it is not in the same file."),
        option("--http-client-tls-cert", metavar="PATH", help="Client certificate, as PEM."),
        option("--http-client-tls-root-ca-file", metavar="PATH", help="CA certificates to trust, as PEM."),
        switch("--http-client-tls-insecure-skip-verify", help="Accept any certificate."),
        option("--http-client-request-timeout", type=seconds, default="5s", help="For a request."),
        option("--http-client-connect-timeout", type=seconds, default="2s", help="For connecting."),
    ):
        command = add(command)
    if nsqds:
        command = _address("--nsqd-http-address", _NSQDS, "HTTP address of an nsqd")(command)
    return _address("--lookupd-http-address", _LOOKUPDS, "nsqlookupd that knows the nsqds")(command)


def _address(flag: str, name: str, text: str) -> Any:
    return option(flag, name, metavar="HOST:PORT", multiple=True, listed=True, help=f"{text}; may be repeated.")


#: A decorator: ``--json`` of a command that prints a table otherwise. The function gets ``as_json``.
json_switch = switch("--json", "as_json", help="Print JSON instead of a table.")
