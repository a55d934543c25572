"""IDENTIFY: what a client may ask for, and nsqd's answer (NSQ.md 1.3). Pure: JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gnsq_like.server.options import VERSION, NsqdOptions

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1

DEFAULT_HEARTBEAT_INTERVAL = 30.0
DEFAULT_OUTPUT_BUFFER_SIZE = 16 * 1024
DEFLATE_LEVEL = 6


class BadIdentify(Exception):
    """An IDENTIFY that is refused; the text is nsqd's."""


class ClientSettings:
    """What one client has negotiated, and nsqd's defaults until then.

    :param address: the client's IP address, which names it until it says more
    """

    def __init__(self, options: NsqdOptions, address: str) -> None:
        self.client_id = address
        self.hostname = address
        self.user_agent = ""
        #: Seconds; 0 for none.
        self.heartbeat_interval = DEFAULT_HEARTBEAT_INTERVAL
        #: Bytes; 1 for unbuffered.
        self.output_buffer_size = DEFAULT_OUTPUT_BUFFER_SIZE
        #: Seconds; 0 for never.
        self.output_buffer_timeout = options.output_buffer_timeout
        self.sample_rate = 0
        self.msg_timeout = options.msg_timeout


class _Fields:
    """The known fields of an IDENTIFY body, checked for their types as Go's JSON decoder does."""

    def __init__(self, body: bytes) -> None:
        try:
            document = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise _undecodable() from None
        if document is None:
            document = {}
        if not isinstance(document, dict):
            raise _undecodable()
        values = {key.lower(): value for key, value in document.items() if value is not None}

        def text(name: str) -> str:
            return str(_typed(values.get(name, ""), lambda value: isinstance(value, str)))

        def flag(name: str) -> bool:
            return bool(_typed(values.get(name, False), lambda value: isinstance(value, bool)))

        def number(name: str, most: int = _INT64_MAX) -> int:
            # 2000.0 and 2e3 arrive as float and are refused, like true.
            return int(_typed(values.get(name, 0), lambda value: type(value) is int and -most - 1 <= value <= most))

        self.client_id = text("client_id")
        self.hostname = text("hostname")
        self.user_agent = text("user_agent")
        self.feature_negotiation = flag("feature_negotiation")
        self.heartbeat_interval = number("heartbeat_interval")
        self.output_buffer_size = number("output_buffer_size")
        self.output_buffer_timeout = number("output_buffer_timeout")
        self.sample_rate = number("sample_rate", _INT32_MAX)
        self.msg_timeout = number("msg_timeout")
        # Not offered yet, and reported so; of the wrong type they are refused all the same.
        for name in ("tls_v1", "snappy", "deflate"):
            flag(name)
        number("deflate_level")


def _undecodable() -> BadIdentify:
    return BadIdentify("IDENTIFY failed to decode JSON body")


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _typed(value: Any, is_right: Callable[[Any], bool]) -> Any:
    if not is_right(value):
        raise _undecodable()
    return value


def identify(body: bytes, settings: ClientSettings, options: NsqdOptions) -> bytes | None:
    """Apply an IDENTIFY body to ``settings``.

    :returns: the JSON answer, or None when the client did not ask for negotiation (it then gets OK)
    :raises BadIdentify: when it is refused; what came before the fault is in ``settings``
    """
    fields = _Fields(body)
    settings.client_id = fields.client_id
    settings.hostname = fields.hostname
    settings.user_agent = fields.user_agent
    _apply_limits(fields, settings, options)
    if not fields.feature_negotiation:
        return None
    answer = {
        "max_rdy_count": options.max_rdy_count,
        "version": VERSION,
        "max_msg_timeout": _ms(options.max_msg_timeout),
        "msg_timeout": _ms(settings.msg_timeout),
        "tls_v1": False,
        "deflate": False,
        "deflate_level": DEFLATE_LEVEL,
        "max_deflate_level": DEFLATE_LEVEL,
        "snappy": False,
        "sample_rate": settings.sample_rate,
        "auth_required": False,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": _ms(settings.output_buffer_timeout),
    }
    return json.dumps(answer, separators=(",", ":")).encode()


def _apply_limits(fields: _Fields, settings: ClientSettings, options: NsqdOptions) -> None:
    """In nsqd's order; 0 leaves what is, -1 switches off."""
    wanted = fields.heartbeat_interval
    if wanted == -1:
        settings.heartbeat_interval = 0.0
    elif wanted:
        settings.heartbeat_interval = _within(wanted, 1.0, options.max_heartbeat_interval, "heartbeat interval")

    wanted = fields.output_buffer_timeout
    if wanted == -1:
        settings.output_buffer_timeout = 0.0
    elif wanted:
        settings.output_buffer_timeout = _within(
            wanted, options.min_output_buffer_timeout, options.max_output_buffer_timeout, "output buffer timeout"
        )

    wanted = fields.output_buffer_size
    if wanted == -1:
        settings.output_buffer_size = 1
        settings.output_buffer_timeout = 0.0
    elif wanted:
        if not 64 <= wanted <= options.max_output_buffer_size:
            raise BadIdentify(f"IDENTIFY output buffer size ({wanted}) is invalid")
        settings.output_buffer_size = wanted

    if not 0 <= fields.sample_rate <= 99:
        raise BadIdentify(f"IDENTIFY sample rate ({fields.sample_rate}) is invalid")
    settings.sample_rate = fields.sample_rate

    if fields.msg_timeout:
        settings.msg_timeout = _within(fields.msg_timeout, 1.0, options.max_msg_timeout, "msg timeout")


def _within(wanted_ms: int, least: float, most: float, what: str) -> float:
    if not _ms(least) <= wanted_ms <= _ms(most):
        raise BadIdentify(f"IDENTIFY {what} ({wanted_ms}) is invalid")
    return wanted_ms / 1000


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
