"""IDENTIFY: a client's request, and nsqd's response (docs/internals 1.3). Pure: JSON in, JSON out."""

from __future__ import annotations

from dataclasses import dataclass

from gnsq_like.server.broker.channel import ELSEWHERE, SAME_REGION, SAME_ZONE
from gnsq_like.server.daemon_options import TOPOLOGY_AWARE_CONSUMPTION, VERSION, NsqdOptions
from gnsq_like.server.shared.gotext import INT32_MAX, read_object, to_json

DEFAULT_HEARTBEAT_INTERVAL = 30.0
DEFAULT_OUTPUT_BUFFER_SIZE = 16 * 1024
DEFLATE_LEVEL = 6


class BadIdentify(Exception):
    """An IDENTIFY that is refused; code and text are nsqd's."""

    def __init__(self, text: str, code: bytes = b"E_BAD_BODY") -> None:
        super().__init__(text)
        self.code = code


class ClientSettings:
    """One client's negotiated settings; nsqd's defaults until then.

    :param address: the client's IP address, the default of its id and host name
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
        self.topology_region = ""
        self.topology_zone = ""
        #: From here; as long as it has not identified itself, and without the experiment, every client is elsewhere.
        self.distance = ELSEWHERE
        self.msg_timeout = options.msg_timeout


class _Fields:
    """The known fields of an IDENTIFY body; raises ValueError for what Go's JSON decoder would reject."""

    def __init__(self, body: bytes) -> None:
        fields = read_object(body)
        self.client_id = fields.text("client_id")
        self.hostname = fields.text("hostname")
        self.user_agent = fields.text("user_agent")
        self.feature_negotiation = fields.flag("feature_negotiation")
        self.heartbeat_interval = fields.number("heartbeat_interval")
        self.output_buffer_size = fields.number("output_buffer_size")
        self.output_buffer_timeout = fields.number("output_buffer_timeout")
        self.sample_rate = fields.number("sample_rate", INT32_MAX)
        self.msg_timeout = fields.number("msg_timeout")
        self.tls_v1 = fields.flag("tls_v1")
        self.snappy = fields.flag("snappy")
        self.deflate = fields.flag("deflate")
        self.deflate_level = fields.number("deflate_level")
        self.topology_region = fields.text("topology_region")
        self.topology_zone = fields.text("topology_zone")


@dataclass(frozen=True)
class Negotiated:
    """The result of an IDENTIFY."""

    #: The JSON response; None for a client that did not ask for negotiation: it gets OK, and no upgrade.
    answer: bytes | None = None
    #: The upgrades that follow the response, in this order.
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL


def identify(body: bytes, settings: ClientSettings, options: NsqdOptions) -> Negotiated:
    """Apply an IDENTIFY body to ``settings``.

    :raises BadIdentify: when it is refused; the fields before the fault are applied to ``settings``
    """
    try:
        fields = _Fields(body)
    except ValueError:
        raise BadIdentify("IDENTIFY failed to decode JSON body") from None
    settings.client_id = fields.client_id
    settings.hostname = fields.hostname
    settings.user_agent = fields.user_agent
    settings.topology_region = fields.topology_region
    settings.topology_zone = fields.topology_zone
    settings.distance = _distance(fields, options)
    _apply_limits(fields, settings, options)
    if not fields.feature_negotiation:
        return Negotiated()
    tls = fields.tls_v1 and bool(options.tls_cert)
    deflate = fields.deflate and options.deflate
    snappy = fields.snappy and options.snappy
    if deflate and snappy:
        raise BadIdentify("cannot enable both deflate and snappy compression", code=b"E_IDENTIFY_FAILED")
    level = fields.deflate_level if deflate and fields.deflate_level > 0 else DEFLATE_LEVEL
    level = min(level, options.max_deflate_level)
    answer = {
        "max_rdy_count": options.max_rdy_count,
        "version": VERSION,
        "max_msg_timeout": _ms(options.max_msg_timeout),
        "msg_timeout": _ms(settings.msg_timeout),
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": bool(options.auth_http_addresses),
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": _ms(settings.output_buffer_timeout),
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    return Negotiated(to_json(answer), tls, snappy, deflate, level)


def _distance(fields: _Fields, options: NsqdOptions) -> int:
    """As for nsqd, an empty name is a name like any other."""
    if TOPOLOGY_AWARE_CONSUMPTION not in options.enable_experiment:
        return ELSEWHERE
    if fields.topology_zone == options.topology_zone:
        return SAME_ZONE
    return SAME_REGION if fields.topology_region == options.topology_region else ELSEWHERE


def _apply_limits(fields: _Fields, settings: ClientSettings, options: NsqdOptions) -> None:
    """In nsqd's order; 0 leaves the default, -1 switches off."""
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
