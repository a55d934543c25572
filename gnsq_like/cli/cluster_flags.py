"""Flags that say which cluster: the addresses of its daemons, and how they are asked over HTTP (timeouts, TLS)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from gnsq_like.cli.tool_options import Address, Decorator, Duration, Function, option, switch

#: The parameters for addresses: flag, short flags, port.
ADDRESSES = {
    "nsqd_tcp_addresses": ("--nsqd-tcp-address", ("-d", "--nsqd"), 4150),
    "nsqd_http_addresses": ("--nsqd-http-address", ("-d", "--nsqd-http"), 4151),
    "lookupd_http_addresses": ("--lookupd-http-address", ("-l", "--lookupd"), 4161),
}
#: The options of requests, by their names elsewhere.
_HTTP = {
    "connect_timeout": "connect_timeout",
    "request_timeout": "request_timeout",
    "verify": "tls_insecure_skip_verify",
    "ca_file": "tls_root_ca_file",
    "cert_file": "tls_cert",
    "key_file": "tls_key",
}
#: The sources of an address; the first that has one counts.
_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def address_option(name: str, text: str, *, short: bool = True) -> Decorator:
    """A decorator: the option for one kind of addresses."""
    flag, shorter, port = ADDRESSES[name]
    return option(
        *(shorter if short else ()),
        *(flag, name),
        type=Address(port),
        metavar="HOST[:PORT]",
        multiple=True,
        listed=True,
        help=f"{text}; may be repeated.",
    )


def chosen(ctx: click.Context, given: Mapping[str, tuple[str, ...]], *, prefer: str) -> dict[str, tuple[str, ...]]:
    """The addresses of one kind, from the first source that has any; if it has both kinds, the preferred one.

    :param given: addresses by parameter
    :param prefer: "" for both
    """
    flags = " or ".join(ADDRESSES[name][0] for name in given)
    sources = {name: ctx.get_parameter_source(name) for name, addresses in given.items() if addresses}
    if not sources:
        shorter = " or ".join(f"{ADDRESSES[name][1][0]} HOST" for name in given)
        raise click.UsageError(f"{flags} required: {shorter}", ctx)
    first = next(source for source in _SOURCES if source in sources.values())
    kinds = [name for name, source in sources.items() if source is first]
    if prefer and len(kinds) == 2:
        if first is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"use {flags} not both", ctx)
        kinds = [prefer]
    return {name: addresses if name in kinds else () for name, addresses in given.items()}


def asks_cluster(function: Function) -> Function:
    """A decorator: the command concerns the nsqds that nsqlookupds know, or given ones. It gets ``daemons``."""
    return _asks(function, prefer="lookupd_http_addresses")


def asks_lookupds(function: Function) -> Function:
    """A decorator: the command asks nsqlookupds only. It gets ``daemons``."""
    return _asks(function, nsqds=False)


def asks_each(function: Function) -> Function:
    """A decorator: the command asks daemons of both kinds. It gets ``daemons``."""
    return _asks(function)


def _asks(function: Function, *, prefer: str = "", nsqds: bool = True) -> Function:
    @functools.wraps(function)
    def command(
        *,
        lookupd_http_addresses: tuple[str, ...],
        http: dict[str, object],
        **values: Any,
    ) -> object:
        ctx = click.get_current_context()
        given = {"nsqd_http_addresses": values.pop("nsqd_http_addresses")} if nsqds else {}
        where = chosen(ctx, {**given, "lookupd_http_addresses": lookupd_http_addresses}, prefer=prefer)
        cert, key = http["cert_file"], http["key_file"]
        if key and not cert:
            raise click.UsageError("--http-client-tls-key needs --http-client-tls-cert", ctx)

        from gnsq_like.cluster.daemons import Daemons

        options = {
            "timeout": http["request_timeout"],
            "connect_timeout": http["connect_timeout"],
            "verify": http["verify"] and (http["ca_file"] or True),
            "cert": (cert, key) if cert and key else cert,
        }
        with Daemons(where.get("nsqd_http_addresses", ()), where["lookupd_http_addresses"], options) as daemons:
            return function(daemons=daemons, **values)

    asking = http_options(command)
    if nsqds:
        asking = address_option("nsqd_http_addresses", "HTTP address of an nsqd")(asking)
    return address_option("lookupd_http_addresses", "nsqlookupd that knows the nsqds")(asking)


def http_options(function: Function, request_timeout: str = "5s") -> Function:
    """A decorator: timeouts and TLS of requests. The function gets ``http``, with the names of tools.to_http.Requests.

    :param request_timeout: a default
    """

    @functools.wraps(function)
    def command(**values: object) -> object:
        http = {name: values.pop(f"http_client_{flag}") for name, flag in _HTTP.items()}
        return function(http={**http, "verify": not http["verify"]}, **values)

    seconds = Duration(above_zero=True)
    for add in (
        option("--http-client-tls-key", metavar="PATH", help="Its key, if it is not in the same file."),
        option("--http-client-tls-cert", metavar="PATH", help="Client certificate, as PEM."),
        option("--http-client-tls-root-ca-file", metavar="PATH", help="CA certificates to trust, as PEM."),
        switch("--http-client-tls-insecure-skip-verify", help="Accept any certificate."),
        option("--http-client-request-timeout", type=seconds, default=request_timeout, help="For a request."),
        option("--http-client-connect-timeout", type=seconds, default="2s", help="For connecting."),
    ):
        command = add(command)
    return command


#: A decorator: ``--json`` of a command that prints a table otherwise. The function gets ``as_json``.
json_switch = switch("--json", "as_json", help="Print JSON instead of a table.")
