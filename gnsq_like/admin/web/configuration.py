"""``/config``: reading any option, and changing two of them (docs/internals 5.1)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flask import request

from gnsq_like.addresses import check_base_urls, shown
from gnsq_like.admin.admin_options import LOG_LEVELS, AdminOptions, read_network
from gnsq_like.admin.web.api import read_body
from gnsq_like.admin.web.identity import is_within
from gnsq_like.admin.web.site import Site
from gnsq_like.errors import InvalidAddress
from gnsq_like.httpd.wsgi import Answer, HTTPProblem

#: Names in NSQ's config file that differ from the options'.
_NAMES = {"lookupd_http_addresses": "nsqlookupd_http_addresses"}
_LOOKUPDS = "nsqlookupd_http_addresses"
#: Options that are not shown: secrets, and URLs that may contain some.
_SECRET = ("password_file", "nsqd_auth_secret", "notification_http_endpoint")


def configure(site: Site, name: str) -> Answer:
    """The answer to GET and PUT /config/NAME. Raises HTTPProblem."""
    network = site.options.allow_config_from_cidr
    if network:
        if not request.remote_addr:
            raise HTTPProblem(400, "INVALID_REMOTE_ADDR")
        if not is_within(request.remote_addr, [read_network("allow_config_from_cidr", network)]):
            raise HTTPProblem(403, "FORBIDDEN")
    if request.method == "PUT":
        if not site.identity.may_write:
            raise HTTPProblem(403, "FORBIDDEN")
        _change(site, name)
    value: Answer = _value(site, name)
    return value


def _change(site: Site, name: str) -> None:
    try:
        body = read_body()
    except HTTPProblem:
        raise HTTPProblem(413, "INVALID_VALUE") from None
    if not body:
        raise HTTPProblem(413, "INVALID_VALUE")
    if name == _LOOKUPDS:
        site.cluster.daemons.use_lookupds(_addresses(body))
        site.run(site.cluster.shared.forget)
    elif name == "log_level":
        level = body.decode("utf-8", "replace").lower()
        if level not in LOG_LEVELS:
            raise HTTPProblem(400, "INVALID_VALUE")
        site.log_level = level
        logging.getLogger("gnsq_like").setLevel(level.upper())
    else:
        raise HTTPProblem(400, "INVALID_OPTION")


def _addresses(body: bytes) -> list[str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPProblem(400, "INVALID_VALUE") from None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise HTTPProblem(400, "INVALID_VALUE")
    try:
        return check_base_urls(found)
    except InvalidAddress:
        raise HTTPProblem(400, "INVALID_VALUE") from None


def _value(site: Site, name: str) -> Any:
    if name == "log_level":
        return LOG_LEVELS.index(site.log_level) + 1
    if name == _LOOKUPDS:
        return site.cluster.daemons.lookupd_http_addresses
    if name == "nsqd_http_addresses":
        return site.cluster.daemons.nsqd_http_addresses
    for field in fields(AdminOptions):
        if _NAMES.get(field.name, field.name) == name and name not in _SECRET:
            value = getattr(site.options, field.name)
            # Durations are ns.
            return round(value * 1e9) if isinstance(value, float) else _without_credentials(value)
    raise HTTPProblem(400, "INVALID_OPTION")


def _without_credentials(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_credentials(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_without_credentials(each) for each in value]
    if isinstance(value, str):
        kind, is_nsqd, address = value.rpartition("nsqd:")
        return f"{is_nsqd}{shown(address)}" if not kind else shown(value)
    return value
