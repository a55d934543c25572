"""Every option of a connection, of discovery, a Reader and a Producer: name, unit, default, bounds.

Each option is a field of a frozen dataclass. Its metadata has its bounds, and what its annotation says of valid values
(:func:`_with_types`); validation and documentation use that. Values are checked for type, for the limits of the
protocol, and against each other; limits that are flags of nsqd are left to nsqd, whose error is reported
(docs/internals 1.3).
Durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from importlib.util import find_spec
from socket import gethostname
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints, runtime_checkable

from gnsq_like._version import __version__
from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress, InvalidOption, did_you_mean
from gnsq_like.options.keywords import (
    ConnectionOptionsDict,
    DiscoveryOptionsDict,
    ProducerOptionsDict,
    ReaderOptionsDict,
)
from gnsq_like.wire.frames import DEFAULT_MAX_FRAME_BYTES
from gnsq_like.wire.negotiated import UPGRADES

__all__ = [
    "DEFAULT_HEARTBEAT_INTERVAL",
    "DEFAULT_OUTPUT_BUFFER_SIZE",
    "DEFAULT_OUTPUT_BUFFER_TIMEOUT",
    "ConnectionOptions",
    "ConnectionOptionsDict",
    "DiscoveryOptions",
    "DiscoveryOptionsDict",
    "ProducerOptions",
    "ProducerOptionsDict",
    "ReaderOptions",
    "ReaderOptionsDict",
    "check_option",
    "make_options",
    "secret_fault",
]

_T = TypeVar("_T", bound="ConnectionOptions")

#: Seconds; a tenth of nsqd's own default, and its minimum unless its flags change that.
DEFAULT_OUTPUT_BUFFER_TIMEOUT = 0.025
#: Bytes; nsqd's maximum unless its flags change that, for fewer and larger writes and reads.
DEFAULT_OUTPUT_BUFFER_SIZE = 65536
#: Seconds; half of what nsqd allows at most unless its flags change that.
DEFAULT_HEARTBEAT_INTERVAL = 30.0


def _host_name() -> str:
    return gethostname() or "localhost"


def _short_host_name() -> str:
    return _host_name().split(".")[0]


def _option(
    text: str,
    default: Any = None,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
) -> Any:
    """A field of an options class.

    :param text: the documentation, with the unit: of the reference, of editors, and of the tools' flags
    :param minimum: smallest value
    :param above: the value must be larger than this
    :param maximum: largest value, if the protocol (not a flag of nsqd) defines one
    :param secret: whether the value must never be shown
    """
    metadata = {
        "text": text,
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "secret": secret,
    }
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def _with_types(given: Mapping[str, Any], annotation: Any) -> MappingProxyType[str, Any]:
    """The metadata of an option, and what its annotation says of valid values: kind, call, choices, also.

    A float may be an int too. Words are the only valid ones if no other type stands beside them.
    """
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if annotation is Any:
        members = (_SSLContext, NoneType)
    words = tuple(word for each in members if get_origin(each) is Literal for word in get_args(each))
    origins = [get_origin(each) or each for each in members]
    kinds = tuple(each for each in origins if each not in (Literal, Callable, NoneType))
    none = (None,) if NoneType in origins else ()
    types: dict[str, Any] = {"kind": str, "choices": words, "also": none}
    if kinds or not words:
        types = {"kind": kinds[0] if len(kinds) == 1 else kinds or NoneType, "choices": (), "also": words + none}
    return MappingProxyType({**given, **types, "call": Callable in origins})


#: Instead of a value that may be a secret, in errors.
_HIDDEN = "<hidden>"


@runtime_checkable
class _SSLContext(Protocol):
    """Identifies an ``ssl.SSLContext``, because ssl must not be imported here."""

    def wrap_bio(self) -> object: ...


_KIND_NAMES: Mapping[type, str] = {float: "number", Mapping: "dict", _SSLContext: "ssl.SSLContext"}


def check_option(option: Field[Any], value: object) -> None:
    """Check one option by itself. Raises InvalidOption."""
    fault = _fault(option.metadata, value)
    if fault is not None:
        raise InvalidOption(option.name, _HIDDEN if option.metadata["secret"] else value, fault)


def secret_fault(secret: str) -> str | None:
    """Why a secret is invalid, or None. The text does not contain the secret."""
    if not secret:
        return "it must not be empty"
    if any("\ud800" <= each <= "\udfff" for each in secret):
        # os.environ has these for bytes that are not UTF-8. The error of encode() would contain the secret.
        return "it must be text that can be encoded in UTF-8"
    return None


def _fault(rules: Mapping[str, Any], value: object) -> str | None:
    if any(value is other or (type(value) is type(other) and value == other) for other in rules["also"]):
        return None
    if rules["call"] and callable(value):
        return None
    kind = rules["kind"]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds if kind is not NoneType)
        words = [repr(other) for other in rules["also"] if isinstance(other, str)]
        valid = [*([f"of type {names}"] if names else ()), *words, *(["callable"] if rules["call"] else ())]
        return f"it must be {' or '.join(valid)}"
    if rules["choices"]:
        if value not in rules["choices"]:
            return f"it must be one of {', '.join(rules['choices'])}"
        if value == "msgpack" and find_spec("msgpack") is None:
            return "msgpack is not installed: pip install msgpack"
    if rules["secret"] and isinstance(value, str):
        return secret_fault(value)
    if not isinstance(value, int | float):
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return "it must be finite"
    if rules["minimum"] is not None and value < rules["minimum"]:
        return f"it must be at least {rules['minimum']}"
    if rules["above"] is not None and value <= rules["above"]:
        return f"it must be above {rules['above']}"
    if rules["maximum"] is not None and value > rules["maximum"]:
        return f"it must be at most {rules['maximum']}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of a connection to an nsqd."""

    client_id: str = _option(
        "The client's name in nsqd's stats; default: the short host name.",
        factory=_short_host_name,
    )
    hostname: str = _option("The client's host in nsqd's stats; default: the full host name.", factory=_host_name)
    user_agent: str = _option("The client's software in nsqd's stats.", f"gnsq_like/{__version__}")
    heartbeat_interval: float = _option(
        "Seconds between nsqd's heartbeats, up to 60 by nsqd's default; an nsqd silent for two intervals is dead.",
        DEFAULT_HEARTBEAT_INTERVAL,
        minimum=1,
    )
    output_buffer_size: int | Literal[-1] | None = _option(
        "Size of nsqd's output buffer in bytes; -1 disables it; None for nsqd's default (16384).",
        DEFAULT_OUTPUT_BUFFER_SIZE,
        minimum=64,
    )
    output_buffer_timeout: float | Literal[-1] | None = _option(
        "Seconds that a message may wait in nsqd's output buffer; -1 for no limit; None for nsqd's default (0.25).",
        DEFAULT_OUTPUT_BUFFER_TIMEOUT,
        above=0,
    )
    sample_rate: int = _option(
        "Percentage of the channel's messages to receive, nsqd drops the others; 0 for all.",
        0,
        minimum=0,
        maximum=99,
    )
    msg_timeout: float | None = _option(
        "Seconds until nsqd delivers an unanswered message again; None for nsqd's default (60).",
        minimum=1,
    )
    tls_v1: bool | Literal["prefer"] = _option('TLS: True requires it, "prefer" uses it if nsqd offers it.', False)
    tls_root_ca_file: str | None = _option("PEM file with the CA certificates to trust; None for the system's.")
    tls_cert: str | None = _option("PEM file with the client's certificate and chain, for an nsqd that requires one.")
    tls_key: str | None = _option("PEM file with the client's key; None if it is in tls_cert too.")
    verify: bool = _option("Whether to verify nsqd's certificate and host name; False is for development.", True)
    server_hostname: str | Callable[[str], str] | None = _option(
        "The name in nsqd's certificate, or a function of the address that returns it; None for the address's host."
    )
    ssl_context: Any = _option("An ssl.SSLContext, instead of tls_root_ca_file, tls_cert, tls_key and verify.")
    snappy: bool | Literal["prefer"] = _option(
        'Snappy compression in both directions: True requires it, "prefer" uses it if offered. Excludes deflate.',
        False,
    )
    deflate: bool | Literal["prefer"] = _option(
        'Deflate compression in both directions: True requires it, "prefer" uses it if offered. Excludes snappy.',
        False,
    )
    deflate_level: int = _option(
        "1 (fast) to 9 (small); nsqd lowers it to its max-deflate-level.",
        6,
        minimum=1,
        maximum=9,
    )
    auth_secret: str | Callable[[], str] | None = _option(
        "The secret for an nsqd that requires AUTH: a string, or a callable that returns a fresh one per connection.",
        secret=True,
    )
    topology_region: str | None = _option(
        "The client's region, for an nsqd newer than 1.3.0 that prefers nearby consumers; None to send none."
    )
    topology_zone: str | None = _option("The client's zone within the region; None to send none.")
    max_frame_bytes: int = _option(
        "Largest accepted frame from nsqd, decompressed; a larger one ends the connection.",
        DEFAULT_MAX_FRAME_BYTES,
        minimum=64,
    )
    connect_timeout: float = _option("Seconds for dialling, IDENTIFY, TLS and AUTH together.", 5.0, above=0)
    write_timeout: float = _option(
        "Seconds for which nsqd may accept no bytes while output is waiting; then the connection is dead.", 5.0, above=0
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            check_option(option, getattr(self, option.name))
        if self.snappy and self.deflate:
            raise InvalidOption("deflate", self.deflate, "snappy is set too; nsqd accepts only one of the two")
        if self.tls_key is not None and self.tls_cert is None:
            raise InvalidOption("tls_key", self.tls_key, "it needs tls_cert")
        if self.server_hostname == "":
            raise InvalidOption("server_hostname", "", "it must not be empty; None means the address's host")
        for name in ("tls_root_ca_file", "tls_cert", "tls_key", "verify", "server_hostname", "ssl_context"):
            value = getattr(self, name)
            if value is None or value is True:
                continue
            if not self.tls_v1:
                raise InvalidOption(name, value, 'it has no effect without TLS; set tls_v1=True or tls_v1="prefer"')
            if self.ssl_context is not None and name not in ("server_hostname", "ssl_context"):
                raise InvalidOption(name, value, "it has no effect with ssl_context; set it up in the context")

    @property
    def required_upgrades(self) -> list[str]:
        """Those of tls_v1, snappy and deflate that nsqd must offer."""
        return [name for name in UPGRADES if getattr(self, name) is True]

    def identify_fields(self) -> dict[str, object]:
        """The fields of IDENTIFY, in its own units (docs/internals 1.3)."""
        given = {
            "feature_negotiation": True,
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "heartbeat_interval": _milliseconds(self.heartbeat_interval),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _milliseconds(self.output_buffer_timeout),
            "sample_rate": self.sample_rate,
            "msg_timeout": _milliseconds(self.msg_timeout),
            "tls_v1": bool(self.tls_v1),
            "snappy": bool(self.snappy),
            "deflate": bool(self.deflate),
            "deflate_level": self.deflate_level if self.deflate else None,
            "topology_region": self.topology_region,
            "topology_zone": self.topology_zone,
        }
        return {name: value for name, value in given.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    # -1 disables a timer and is not a duration. nsqd refuses 2000.0 (docs/internals 8.51).
    return seconds if seconds is None or seconds == -1 else max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions(ConnectionOptions):
    """Options of discovery with nsqlookupd, for Reader and Producer."""

    lookupd_poll_interval: float = _option("Seconds between two polls of the nsqlookupds.", 60.0, above=0)
    lookupd_poll_jitter: float = _option(
        "Random part of that interval, drawn anew each time; 0 to 1.", 0.3, minimum=0, maximum=1
    )
    lookupd_timeout: float = _option("Seconds for a whole request to an nsqlookupd.", 5.0, above=0)
    lookupd_authorization: str | Callable[[], str] | None = _option(
        "The Authorization header for nsqlookupds: a string, or a callable that returns a fresh one.", secret=True
    )
    lookupd_verify: bool | str = _option(
        "For nsqlookupds with https: True, False, or the path of a file or directory of CA certificates.", True
    )
    lookupd_cert: str | tuple[str, str] | None = _option(
        "Client certificate for nsqlookupds with https: the path of a file with certificate and key, or both paths."
    )
    discovery_filter: Callable[[Any], bool] | None = _option(
        "Called with each discovered nsqd (an NsqdNode); returning False excludes it."
    )
    address_map: Mapping[str, str] | Callable[[str], str | None] | None = _option(
        "Addresses to dial instead of those that nsqlookupd lists: a mapping, or a callable that takes "
        'the listed "host:port". What is not in it, or None, is dialled as listed.',
    )

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one super() was compiled for.
        ConnectionOptions.__post_init__(self)
        if isinstance(self.address_map, Mapping):
            for listed, dialled in self.address_map.items():
                for address in (listed, dialled):
                    try:
                        parse_address(address)
                    except InvalidAddress as exc:
                        raise InvalidOption("address_map", self.address_map, str(exc)) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(DiscoveryOptions):
    """Options of a Producer, including those of its connections and of discovery."""

    timeout: float = _option(
        "Seconds for a publish in total: connecting, waiting for room, writing, and nsqd's answer.", 10.0, above=0
    )
    fail_fast: bool = _option(
        "Whether publishes fail at once while every nsqd is unreachable, and do not wait for one until their deadline.",
        False,
    )
    retry_unknown: bool = _option(
        "Whether to retry a publish whose outcome is unknown, at the risk of a duplicate.", False
    )
    max_pending_count: int = _option(
        "Maximum number of unanswered publishes per connection; further ones wait.", 10_000, minimum=1
    )
    max_pending_bytes: int = _option(
        "Maximum bytes of these; a single publish may be larger.", 64 * 1024 * 1024, minimum=1
    )
    max_msg_bytes: int = _option(
        "Largest message body; set it to nsqd's flag max-msg-size, which nsqd does not report to clients.",
        1024 * 1024,
        minimum=1,
    )
    max_body_bytes: int = _option(
        "Largest body of an MPUB, nsqd's flag max-body-size; multi_publish splits at it.", 5 * 1024 * 1024, minimum=16
    )
    max_redial_delay: float = _option(
        "Longest delay, in seconds, before redialling an nsqd whose refusal a retry cannot cure. One that "
        "cannot be reached is redialled after at most half the publish timeout.",
        30.0,
        above=0,
    )
    encoder: Literal["json", "msgpack"] | Callable[[Any], bytes] | None = _option(
        'Encodes bodies: "json", "msgpack", or a callable that returns bytes; None if bodies are bytes.'
    )
    batching: bool = _option("Whether to combine concurrent publishes into one MPUB per topic.", False)
    max_batch_count: int = _option("Maximum number of messages in a batch.", 1000, minimum=1)
    max_batch_bytes: int = _option(
        "Maximum bytes of a batch, never more than max_body_bytes; a larger message is sent alone.",
        1024 * 1024,
        minimum=16,
    )
    linger: float = _option(
        "Seconds that the first message of a batch waits for others; 0 collects only concurrent publishes.",
        0.0,
        minimum=0,
    )
    replicas: int = _option("Number of different nsqds to which each message is published.", 1, minimum=1)
    quorum: int | None = _option("Number of these that must confirm it; None for all.", minimum=1)
    own_thread: bool | None = _option(
        "Whether the connections run in a background thread (True) or in the hub of the first thread that "
        "publishes (False). None: the former unless threading is patched and that thread is the main one.",
    )

    def __post_init__(self) -> None:
        # Not super(), as above.
        DiscoveryOptions.__post_init__(self)
        if self.quorum is not None and self.quorum > self.replicas:
            raise InvalidOption("quorum", self.quorum, f"it must be at most replicas={self.replicas}")

    @property
    def needed(self) -> int:
        """The number of nsqds that must confirm a publish."""
        return self.replicas if self.quorum is None else self.quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions(DiscoveryOptions):
    """Options of a Reader, including those of its connections and of discovery."""

    max_in_flight: int = _option("Maximum number of messages in flight, on all connections together.", 1, minimum=0)
    rate_limit: float | None = _option(
        "Messages a second that the Reader receives, redeliveries included; None for no limit.", above=0
    )
    concurrency: int | None = _option("Maximum number of handlers that run at once; None for max_in_flight.", minimum=1)
    max_attempts: int = _option("Number of deliveries after which a message is given up; 0 for never.", 5, minimum=0)
    max_age: float | None = _option(
        "Seconds since its publishing after which a message is finished without being handled; None for never.",
        above=0,
    )
    default_requeue_delay: float = _option(
        "Requeue delay of a failed message in seconds, multiplied by its attempts.", 90.0, minimum=0
    )
    max_requeue_delay: float = _option("Upper limit of that delay, in seconds.", 900.0, minimum=0)
    low_rdy_idle_timeout: float = _option(
        "Longest time without a message, in seconds, for which a connection keeps a place while others have none; "
        "mostly it gives the place up far sooner.",
        10.0,
        above=0,
    )
    low_rdy_timeout: float = _option(
        "If max_in_flight is below the number of busy nsqds, they take turns of at most so many seconds.", 1.0, above=0
    )
    low_rdy_probe_timeout: float = _option(
        "Longest wait of a backoff test for a message on one connection, in seconds, while there are others.",
        0.25,
        above=0,
    )
    adaptive_rdy: bool = _option(
        "Whether RDY follows the traffic, so that sparse messages do not wait in nsqd's output buffer.", True
    )
    max_backoff_duration: float = _option(
        "Longest pause of the whole Reader after failing handlers, in seconds; 0 disables backoff.", 120.0, minimum=0
    )
    backoff_multiplier: float = _option("Unit of the backoff strategies, in seconds.", 1.0, above=0)
    backoff_strategy: Literal["exponential", "full_jitter"] | Callable[[int], float] = _option(
        '"exponential", "full_jitter", or a callable that returns seconds for a level, 1 and above.', "exponential"
    )
    max_redial_delay: float = _option("Longest delay before redialling an nsqd, in seconds.", 5.0, above=0)
    spawn: Literal["greenlet", "thread"] = _option(
        '"greenlet", or "thread" for handlers that use much CPU or block outside gevent.', "greenlet"
    )
    log_tracebacks: bool = _option(
        "Whether each failure of a handler is logged as an error with its traceback, not only the first of "
        "its kind within a minute.",
        False,
    )
    decoder: Literal["json", "msgpack"] | Callable[[bytes], Any] | None = _option(
        'Decodes bodies for message.data: "json", "msgpack", or a callable that takes bytes; None if '
        "bodies stay bytes.",
    )


_hints = get_type_hints(ProducerOptions) | get_type_hints(ReaderOptions)
for _made in {*fields(ProducerOptions), *fields(ReaderOptions)}:
    _made.metadata = _with_types(_made.metadata, _hints[_made.name])


def make_options(cls: type[_T], given: Mapping[str, Any], others: Iterable[str] = ()) -> _T:
    """Make an options object of ``cls`` from keyword arguments. Raises InvalidOption, also for an unknown name.

    :param others: names that the caller takes itself, for the suggestion
    """
    known = [option.name for option in fields(cls)]
    for name in given:
        if name not in known:
            # The value may be that of a misspelt auth_secret.
            near = did_you_mean(name, [*known, *others])
            raise InvalidOption(name, _HIDDEN, f"there is no such option{near}")
    return cls(**given)
