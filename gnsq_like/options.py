"""Every option of a connection, a Reader and a Producer: name, unit, default, bounds, IDENTIFY field.

Each option is a field of one of three frozen dataclasses; what is true of every option (its type, its
minimum, the field of IDENTIFY it becomes and in which unit) stands in the field's metadata, so that
checking, negotiating and documenting read the same line. Values are checked for type and for the
protocol's minimum only: maxima are nsqd's flags, and nsqd's own refusal is quoted (docs/internals 1.3).
Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

from gnsq_like._version import __version__
from gnsq_like.errors import InvalidOption
from gnsq_like.suggestion import did_you_mean
from gnsq_like.wire.frames import DEFAULT_MAX_FRAME_BYTES
from gnsq_like.wire.negotiated import UPGRADES

_T = TypeVar("_T")

#: Seconds; a tenth of nsqd's own default, and the least that nsqd takes unless its flags say otherwise.
DEFAULT_OUTPUT_BUFFER_TIMEOUT = 0.025
#: Bytes; the most that nsqd takes unless its flags say otherwise: fewer and larger writes, and reads here.
DEFAULT_OUTPUT_BUFFER_SIZE = 65536


def _host_name() -> str:
    return platform.node() or "localhost"


def _short_host_name() -> str:
    return _host_name().split(".")[0]


def _option(
    default: Any = None,
    *,
    kind: type | tuple[type, ...] = float,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    also: tuple[object, ...] = (),
    identify: str | None = None,
    call: bool = False,
    choices: tuple[str, ...] = (),
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
) -> Any:
    """A field of an options class.

    :param kind: the type; float takes int too
    :param minimum: least value
    :param above: the value must be larger than this
    :param maximum: largest value, where the protocol (not a flag of nsqd's) sets one
    :param also: values that are right although they are none of that
    :param choices: the only values that are right
    :param call: whether any callable is right too
    :param identify: the field of IDENTIFY; a float is sent as whole milliseconds
    :param secret: whether the value is shown nowhere
    """
    metadata = {
        "kind": kind,
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "also": also,
        "identify": identify,
        "call": call,
        "choices": choices,
        "secret": secret,
    }
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


class _Hidden:
    """Stands in errors for a value that may be a secret."""

    def __repr__(self) -> str:
        return "<hidden>"


_HIDDEN = _Hidden()


@runtime_checkable
class _SSLContext(Protocol):
    """What an ``ssl.SSLContext`` is known by here, where ssl must not be imported."""

    def wrap_bio(self) -> object: ...


_KIND_NAMES: Mapping[type, str] = {float: "number", _SSLContext: "ssl.SSLContext"}


def _check(option: Field[Any], value: object) -> None:
    fault = _fault(option.metadata, value)
    if fault is not None:
        raise InvalidOption(option.name, _HIDDEN if option.metadata["secret"] else value, fault)


def secret_fault(secret: str) -> str | None:
    """What is wrong with a secret, or None; nothing of it is in that."""
    if not secret:
        return "it must not be empty"
    if any("\ud800" <= each <= "\udfff" for each in secret):
        # As os.environ has them for bytes that are not UTF-8. An error of encode() would carry the secret.
        return "it must be text that can be written in UTF-8"
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
        names = " or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds)
        words = [repr(other) for other in rules["also"] if isinstance(other, str)]
        return f"it must be {' or '.join([f'of type {names}', *words])}"
    if rules["choices"] and value not in rules["choices"]:
        return f"it must be one of {', '.join(rules['choices'])}"
    if rules["secret"] and isinstance(value, str):
        return secret_fault(value)
    if not isinstance(value, int | float):
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return "it must be finite"
    if rules["minimum"] is not None and value < rules["minimum"]:
        return f"the least is {rules['minimum']}"
    if rules["above"] is not None and value <= rules["above"]:
        return f"it must be above {rules['above']}"
    if rules["maximum"] is not None and value > rules["maximum"]:
        return f"the most is {rules['maximum']}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What concerns one connection to an nsqd."""

    #: Names this client in nsqd's stats; the short host name.
    client_id: str = _option(kind=str, identify="client_id", factory=_short_host_name)
    #: The host in nsqd's stats; the full host name.
    hostname: str = _option(kind=str, identify="hostname", factory=_host_name)
    user_agent: str = _option(f"gnsq_like/{__version__}", kind=str, identify="user_agent")
    #: Seconds between two heartbeats of nsqd; a peer silent for two of them is dead. nsqd takes up to 60.
    heartbeat_interval: float = _option(30.0, minimum=1, identify="heartbeat_interval")
    #: Bytes that nsqd gathers before it writes; -1 for none. None leaves nsqd's default (16384).
    output_buffer_size: int | None = _option(
        DEFAULT_OUTPUT_BUFFER_SIZE, kind=int, minimum=64, also=(None, -1), identify="output_buffer_size"
    )
    #: Seconds that a message may lie in nsqd's buffer; -1 for no timer at all. nsqd's own default is 0.25.
    output_buffer_timeout: float | None = _option(
        DEFAULT_OUTPUT_BUFFER_TIMEOUT, above=0, also=(None, -1), identify="output_buffer_timeout"
    )
    #: Percent of the channel's messages to receive; nsqd drops the others for good. 0 for all.
    sample_rate: int = _option(0, kind=int, minimum=0, maximum=99, identify="sample_rate")
    #: Seconds until nsqd delivers an unanswered message again; None for nsqd's default (60).
    msg_timeout: float | None = _option(None, minimum=1, also=(None,), identify="msg_timeout")
    #: TLS: True requires it of nsqd, "prefer" goes on without where nsqd has none.
    tls_v1: bool | str = _option(False, kind=bool, also=("prefer",), identify="tls_v1")
    #: A PEM file of the certificates to trust; None for the system's.
    tls_root_ca_file: str | None = _option(None, kind=str, also=(None,))
    #: A PEM file with this side's certificate (and its chain), for an nsqd that requires one.
    tls_cert: str | None = _option(None, kind=str, also=(None,))
    #: A PEM file with its key; None if that is in tls_cert too.
    tls_key: str | None = _option(None, kind=str, also=(None,))
    #: Whether nsqd's certificate and the name in it are checked. False takes any: for development.
    verify: bool = _option(True, kind=bool)
    #: The name in nsqd's certificate, or a function of the address that gives it; None for the address's host.
    server_hostname: str | Callable[[str], str] | None = _option(None, kind=str, also=(None,), call=True)
    #: An ssl.SSLContext, in the place of tls_root_ca_file, tls_cert, tls_key and verify.
    ssl_context: Any = _option(None, kind=_SSLContext, also=(None,))
    #: Snappy compression, both ways: True requires it of nsqd, "prefer" goes on without. Not together with deflate.
    snappy: bool | str = _option(False, kind=bool, also=("prefer",), identify="snappy")
    #: Deflate compression, both ways, as snappy.
    deflate: bool | str = _option(False, kind=bool, also=("prefer",), identify="deflate")
    #: 1 (fast) to 9 (small); nsqd lowers it to its max-deflate-level.
    deflate_level: int = _option(6, kind=int, minimum=1, maximum=9, identify="deflate_level")
    #: What nsqd is told if it asks who this is (AUTH): a string, or a callable that gives a fresh one.
    auth_secret: str | Callable[[], str] | None = _option(None, kind=str, also=(None,), call=True, secret=True)
    #: Where this client runs, for an nsqd newer than 1.3.0 that prefers consumers near by; None for nothing.
    topology_region: str | None = _option(None, kind=str, also=(None,), identify="topology_region")
    #: The part of the region, likewise.
    topology_zone: str | None = _option(None, kind=str, also=(None,), identify="topology_zone")
    #: A larger frame from nsqd, decompressed if need be, ends the connection.
    max_frame_bytes: int = _option(DEFAULT_MAX_FRAME_BYTES, kind=int, minimum=64)
    #: Seconds from the dial to the last answer before SUB or a publish: IDENTIFY, TLS, AUTH.
    connect_timeout: float = _option(5.0, above=0)
    #: Seconds that bytes may wait for the peer to take any.
    write_timeout: float = _option(5.0, above=0)

    def __post_init__(self) -> None:
        for option in fields(self):
            _check(option, getattr(self, option.name))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.snappy and self.deflate:
            raise InvalidOption("deflate", self.deflate, "snappy is asked for too; nsqd takes one of the two")
        if self.tls_key is not None and self.tls_cert is None:
            raise InvalidOption("tls_key", self.tls_key, "it needs tls_cert")
        if self.server_hostname == "":
            raise InvalidOption("server_hostname", "", "it must not be empty; None takes the address's host")
        for name in ("tls_root_ca_file", "tls_cert", "tls_key", "verify", "server_hostname", "ssl_context"):
            value = getattr(self, name)
            if value is None or value is True:
                continue
            if not self.tls_v1:
                raise InvalidOption(name, value, 'it is for TLS, which tls_v1=True or tls_v1="prefer" switches on')
            if self.ssl_context is not None and name not in ("server_hostname", "ssl_context"):
                raise InvalidOption(name, value, "the ssl_context says that already")

    @property
    def required_upgrades(self) -> list[str]:
        """Of tls_v1, snappy and deflate, those that nsqd must grant."""
        return [name for name in UPGRADES if getattr(self, name) is True]

    def identify_fields(self) -> dict[str, object]:
        """The JSON object of IDENTIFY, in its own units (docs/internals 1.3)."""
        result: dict[str, object] = {"feature_negotiation": True}
        for option in fields(self):
            name = option.metadata["identify"]
            value = getattr(self, option.name)
            if name is None or value is None or (name == "deflate_level" and not self.deflate):
                continue
            if name in UPGRADES:
                value = bool(value)
            # -1 switches a timer off; it is no duration. nsqd refuses 2000.0 (docs/internals 8.51).
            if option.metadata["kind"] is float and value != -1:
                value = max(1, round(value * 1000))
            result[name] = value
        # nsqd before 0.2.28 knows the two only by these names.
        result["short_id"] = self.client_id
        result["long_id"] = self.hostname
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions(ConnectionOptions):
    """What concerns finding nsqds through nsqlookupd, for Reader and Producer alike."""

    #: Seconds between two rounds of asking the nsqlookupds.
    lookupd_poll_interval: float = _option(60.0, above=0)
    #: Share of that interval that is random, drawn anew each round.
    lookupd_poll_jitter: float = _option(0.3, minimum=0, maximum=1)
    #: Seconds for the whole answer of a nsqlookupd.
    lookupd_timeout: float = _option(5.0, above=0)
    #: The Authorization header for the nsqlookupds: a string, or a callable that gives a fresh one.
    lookupd_authorization: str | Callable[[], str] | None = _option(
        None, kind=str, also=(None,), call=True, secret=True
    )
    #: For nsqlookupds over https: True, False, or the path of a file or directory of CA certificates.
    lookupd_verify: bool | str = _option(True, kind=(bool, str))
    #: For nsqlookupds over https that want a certificate: the path of it with its key, or the paths of both.
    lookupd_cert: str | tuple[str, str] | None = _option(None, kind=(str, tuple), also=(None,))
    #: Called with each nsqd that discovery found (a NsqdNode); False leaves it out.
    discovery_filter: Callable[[Any], bool] | None = _option(None, kind=type(None), call=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(DiscoveryOptions):
    """What concerns a Producer, beside its connections."""

    #: Seconds for one publish in all: connecting, waiting for room, writing, and nsqd's answer.
    timeout: float = _option(10.0, above=0)
    #: Whether a publish whose outcome is unknown is sent again, although that may make a duplicate.
    retry_unknown: bool = _option(False, kind=bool)
    #: Publishes that may wait for their answers on one connection; more wait for room.
    max_pending_count: int = _option(10_000, kind=int, minimum=1)
    #: Bytes of them; one publish is let through whatever its size.
    max_pending_bytes: int = _option(64 * 1024 * 1024, kind=int, minimum=1)
    #: The largest body: nsqd's flag max-msg-size, which nsqd does not tell its clients.
    max_msg_bytes: int = _option(1024 * 1024, kind=int, minimum=1)
    #: The largest body of an MPUB: nsqd's flag max-body-size. multi_publish splits to stay below it.
    max_body_bytes: int = _option(5 * 1024 * 1024, kind=int, minimum=16)
    #: The longest time between two tries to reach an nsqd that refuses this client for good. One that is away is
    #: tried again after half the publish timeout at most.
    max_redial_delay: float = _option(30.0, above=0)
    #: What makes bytes of a body: "json", "msgpack", or a callable. Without it, bodies are bytes.
    encoder: str | Callable[[Any], bytes] | None = _option(
        None, kind=str, choices=("json", "msgpack"), also=(None,), call=True
    )
    #: Whether publishes that wait at the same moment go out as one MPUB for each topic.
    batching: bool = _option(False, kind=bool)
    #: Messages of one batch at most.
    max_batch_count: int = _option(1000, kind=int, minimum=1)
    #: Bytes of one batch at most, and never more than max_body_bytes; a larger message goes alone.
    max_batch_bytes: int = _option(1024 * 1024, kind=int, minimum=16)
    #: Seconds that the first message of a batch waits for others; 0 for those of the same moment only.
    linger: float = _option(0.0, minimum=0)
    #: To how many different nsqds each message is published.
    replicas: int = _option(1, kind=int, minimum=1)
    #: How many of them must say OK; None for all.
    quorum: int | None = _option(None, kind=int, minimum=1, also=(None,))
    #: True: the connections live in a background thread. False: in the hub of the first thread that publishes.
    #: None: in the background where threading is not patched, else in the main thread's hub.
    own_thread: bool | None = _option(None, kind=bool, also=(None,))

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one super() was compiled for.
        DiscoveryOptions.__post_init__(self)
        if self.quorum is not None and self.quorum > self.replicas:
            raise InvalidOption("quorum", self.quorum, f"the most is replicas={self.replicas}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions(DiscoveryOptions):
    """What concerns a Reader, beside its connections."""

    #: Messages in flight at once, over all connections together.
    max_in_flight: int = _option(1, kind=int, minimum=0)
    #: Handlers that run at once; None for max_in_flight.
    concurrency: int | None = _option(None, kind=int, minimum=1, also=(None,))
    #: Deliveries after which a message is given up; 0 for never.
    max_attempts: int = _option(5, kind=int, minimum=0)
    #: Seconds until a failed message comes again, times its attempts.
    default_requeue_delay: float = _option(90.0, minimum=0)
    #: The most that this grows to.
    max_requeue_delay: float = _option(900.0, minimum=0)
    #: A connection silent for so long lends its share to the busy ones.
    low_rdy_idle_timeout: float = _option(10.0, above=0)
    #: The longest turn of a busy connection, where connections take turns because max_in_flight is smaller.
    low_rdy_timeout: float = _option(30.0, above=0)
    #: The longest turn, there, of a connection that delivers nothing.
    low_rdy_probe_timeout: float = _option(0.25, above=0)
    #: Whether RDY follows the traffic below its share, so that messages that trickle come at once.
    adaptive_rdy: bool = _option(True, kind=bool)
    #: The longest that a failing handler stops everything; 0 switches backoff off.
    max_backoff_duration: float = _option(120.0, minimum=0)
    #: Seconds that the backoff strategies multiply.
    backoff_multiplier: float = _option(1.0, above=0)
    #: "exponential", "full_jitter", or a callable from the level (1, 2, ...) to seconds.
    backoff_strategy: str | Callable[[int], float] = _option(
        "exponential", kind=str, choices=("exponential", "full_jitter"), call=True
    )
    #: The longest time between two tries to reach an nsqd of a fixed list that is away.
    max_redial_delay: float = _option(60.0, above=0)
    #: "greenlet", or "thread" for handlers that keep the CPU or block without gevent's knowing.
    spawn: str = _option("greenlet", kind=str, choices=("greenlet", "thread"))


def make_options(cls: type[_T], given: Mapping[str, object]) -> _T:
    """An options object of ``cls`` from keyword arguments; raises InvalidOption, for an unknown name too."""
    known = [option.name for option in fields(cls)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            # A mistyped auth_secret must not be shown either.
            raise InvalidOption(name, _HIDDEN, f"there is no such option{did_you_mean(name, known)}")
    return cls(**given)
