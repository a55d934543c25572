"""Settings of web applications: from a framework's configuration and the environment to options.

A setting is an option's name in capitals, such as ``MAX_IN_FLIGHT``, or one of the two addresses. It applies to the
Readers and the Producer if both have the option; with the prefix ``READER_`` or ``PRODUCER_`` to one of the two, where
it overrides the other. ``PUBLISH_TIMEOUT`` is the Producer's option ``timeout``. Each integration adds its own
settings. ``_PRODUCER_DEFAULTS`` differ from the options' own: a request should not wait for an unreachable nsqd.

In the environment every name has the prefix ``NSQ_``. The configuration overrides the environment. An unknown name in
the configuration is an error; in the environment it is ignored, since other programs may use it.

NSQ's usual layout is an nsqd on each publishing host, and nsqlookupds that list all nsqds: with both addresses set, the
Producer uses the nsqds and the Readers use the nsqlookupds.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from types import NoneType
from typing import Any, TypeVar

from gevent import monkey

from gnsq_like import Producer, Reader
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.errors import InvalidOption, UsageError, did_you_mean
from gnsq_like.options import ProducerOptions, ReaderOptions, check_option
from gnsq_like.options.text import read_text

_P = TypeVar("_P", bound=Producer[Any])

#: The prefix of each name in the environment.
ENVIRONMENT_PREFIX = "NSQ_"

_ADDRESSES = ("nsqd_tcp_addresses", "lookupd_http_addresses")
_OPTIONS = {"READER_": ReaderOptions, "PRODUCER_": ProducerOptions}
#: The name of the Producer's option ``timeout`` here, where TIMEOUT alone would be ambiguous.
_PUBLISH_TIMEOUT = "PUBLISH_TIMEOUT"
#: Defaults of a Producer in a web application.
_PRODUCER_DEFAULTS: Mapping[str, object] = {"fail_fast": True, "timeout": 2.0}


def _parsed(name: str, text: str, kinds: tuple[type, ...]) -> object:
    """Text from the environment, or a configuration that has only text; "" and "none" are None."""
    try:
        return read_text(text, (*kinds, NoneType))
    except UsageError as exc:
        raise InvalidOption(name, text, str(exc)) from None


def _addresses(label: str, value: object) -> list[str]:
    """The list for one address, several, a string of them separated by commas, or None."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, Iterable):
        raise InvalidOption(label, value, "it must be an address, or a list of addresses")
    return list(value)


@dataclass(frozen=True)
class Settings:
    """An application's settings, checked; made by :func:`make_settings`."""

    #: Keyword arguments of a Producer; without addresses if none are set.
    producer: Mapping[str, object]
    #: Keyword arguments of a Reader, likewise.
    reader: Mapping[str, Any]
    #: All of the integration's own settings, by their names in capitals.
    own: Mapping[str, Any]
    #: The names of these two as they were set, by option.
    producer_labels: Mapping[str, str] = field(default_factory=dict)
    reader_labels: Mapping[str, str] = field(default_factory=dict)
    #: If not empty, the only nsqd, whatever addresses are set or given; see :meth:`at`.
    only_nsqd: str = ""

    def at(self, address: str) -> Settings:
        """The same settings with one nsqd for everything, such as an embedded one."""
        only = {"nsqd_tcp_addresses": [address]}
        return replace(
            self,
            producer=_without_addresses(self.producer) | only,
            reader=_without_addresses(self.reader) | only,
            only_nsqd=address,
        )

    @property
    def has_producer_address(self) -> bool:
        """Whether an address to publish to is set."""
        return any(self.producer.get(name) for name in _ADDRESSES)

    def make_producer(self, encode: Callable[[Any], bytes], kind: Callable[..., _P] = Producer) -> _P:  # type: ignore[assignment]
        """A Producer with these settings. It sends bytes unchanged, and encodes anything else by the setting ENCODER.

        :param encode: the framework's JSON encoder, for "json", which is also the default
        :param kind: makes it of a Producer's arguments
        :raises InvalidOption: when no address is set, or for a wrong combination of settings
        """
        options = {**_PRODUCER_DEFAULTS, **self.producer}
        encoder = options.pop("encoder", None)
        if encoder == "msgpack":
            encoder = _msgpack_encoder()
        elif not callable(encoder):
            encoder = encode
        options["encoder"] = _unless_bytes(encoder)
        return _made(lambda: kind(**options), self.producer_labels)

    def make_reader(
        self, topic: str | Iterable[str] | re.Pattern[str], channel: str, handler: Any, options: Mapping[str, object]
    ) -> Reader:
        """A Reader with these settings.

        If threading is not patched, its handlers run in threads unless a setting or option says otherwise.

        :param options: keyword arguments, which override settings; addresses among them replace all that are set
        :raises InvalidOption: when no address is set or given, or for a wrong combination of settings
        """
        given = dict(self.reader)
        if self.only_nsqd:
            options = _without_addresses(options)
        elif any(options.get(name) for name in _ADDRESSES):
            given = _without_addresses(given)
        # In an unpatched process, handlers that block would block the hub, and with it every heartbeat.
        spawn = "greenlet" if monkey.is_module_patched("threading") else "thread"
        merged = {"spawn": spawn} | given | dict(options)
        labels = {name: label for name, label in self.reader_labels.items() if name not in options}
        return _made(lambda: Reader(topic, channel, handler, **merged), labels)


def make_settings(
    given: Mapping[str, object],
    *,
    own: Mapping[str, tuple[object, tuple[type, ...]]],
    environ: Mapping[str, str] = os.environ,
    label: str = "NSQ_{}",
) -> Settings:
    """Read and check an application's settings. Never switches.

    :param given: the framework's configuration: names in capitals, without ``NSQ_``
    :param own: the integration's own settings: for each name its default, which also replaces None, and its types
    :param environ: the environment; names with ``NSQ_``
    :param label: the framework's spelling of a name, for errors
    :raises InvalidOption: for an unknown name in ``given``, and for a wrong value
    """
    known = _known_options()
    names = {*own, *known}
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names, label)
            raise InvalidOption(label.format(name), given[name], f"there is no such setting{hint}")
    found: dict[str, tuple[str, object]] = {}
    for name in names:
        if name in given:
            found[name] = (label.format(name), given[name])
        elif ENVIRONMENT_PREFIX + name in environ:
            found[name] = (ENVIRONMENT_PREFIX + name, environ[ENVIRONMENT_PREFIX + name])
    producer, producer_labels = _side("PRODUCER_", found, prefer="nsqd_tcp_addresses")
    reader, reader_labels = _side("READER_", found, prefer="lookupd_http_addresses")
    return Settings(
        producer=producer,
        producer_labels=producer_labels,
        reader=reader,
        reader_labels=reader_labels,
        own={name: _own(found.get(name, ("", None)), default, kinds) for name, (default, kinds) in own.items()},
    )


def _msgpack_encoder() -> Callable[[Any], bytes]:
    try:
        import msgpack
    except ModuleNotFoundError as exc:
        reason = str(missing(exc, distribution="msgpack"))
        raise InvalidOption(ENVIRONMENT_PREFIX + "ENCODER", "msgpack", reason) from exc
    encode: Callable[[Any], bytes] = msgpack.packb
    return encode


def _made(make: Callable[[], object], labels: Mapping[str, str]) -> Any:
    try:
        return make()
    except InvalidOption as exc:
        if exc.option in labels:
            raise InvalidOption(labels[exc.option], exc.value, exc.reason) from exc
        if exc.option not in _ADDRESSES:
            raise
        raise InvalidOption(
            ENVIRONMENT_PREFIX + exc.option.upper(),
            exc.value,
            "set it, or NSQ_LOOKUPD_HTTP_ADDRESSES, in the configuration or the environment",
        ) from exc


def _without_addresses(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if name not in _ADDRESSES}


def _unless_bytes(encode: Callable[[Any], bytes]) -> Callable[[Any], object]:
    def encoded(value: object) -> object:
        return value if isinstance(value, bytes | bytearray | memoryview) else encode(value)

    return encoded


def _known_options() -> set[str]:
    known = {_PUBLISH_TIMEOUT}
    for prefix, options in _OPTIONS.items():
        for name in (*_ADDRESSES, *(option.name for option in fields(options))):
            known |= {name.upper(), prefix + name.upper()}
    return known


def _side(
    prefix: str, found: Mapping[str, tuple[str, object]], *, prefer: str
) -> tuple[dict[str, object], dict[str, str]]:
    """The keyword arguments of a Reader or a Producer, and the names under which they were set."""
    result = {}
    labels = {}
    for option in fields(_OPTIONS[prefix]):
        name = option.name.upper()
        names = [_PUBLISH_TIMEOUT] if prefix + name == "PRODUCER_TIMEOUT" else []
        label, value = next((found[each] for each in (*names, prefix + name, name) if each in found), ("", MISSING))
        if value is not MISSING:
            result[option.name] = _checked(label, value, option)
            labels[option.name] = label
    return result | _side_addresses(prefix, found, prefer), labels


def _side_addresses(prefix: str, found: Mapping[str, tuple[str, object]], prefer: str) -> dict[str, Any]:
    own_addresses = {name: _addresses(*found[key]) for name in _ADDRESSES if (key := prefix + name.upper()) in found}
    if any(own_addresses.values()):
        return own_addresses
    addresses = {name: _addresses(*found[name.upper()]) for name in _ADDRESSES if name.upper() in found}
    if addresses.get(prefer):
        return {prefer: addresses[prefer]}
    return addresses


def _checked(label: str, value: object, option: Field[object]) -> object:
    """The value, right by itself; combinations are checked when a Reader or a Producer is made."""
    kind = option.metadata["kind"]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, str):
        value = _parsed(label, value, kinds)
    try:
        check_option(option, value)
    except InvalidOption as exc:
        raise InvalidOption(label, value, exc.reason) from exc
    return value


def _own(found: tuple[str, object], default: object, kinds: tuple[type, ...]) -> object:
    """The value found, or the default instead of None. A float is seconds."""
    label, value = found
    if isinstance(value, str):
        value = _parsed(label, value, kinds)
    if value is None:
        return default
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise InvalidOption(label, value, f"it must be of type {' or '.join(kind.__name__ for kind in kinds)}")
    seconds: Any = value if float in kinds else 0.0
    if not 0 <= seconds < math.inf:
        raise InvalidOption(label, value, "it must be seconds, 0 or more")
    return value
