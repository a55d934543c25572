"""Options of Readers and Producers as text, for flags, ``--consumer-opt``, ``--producer-opt``, files and environment.

Names are ours and, where different, go-nsq's; "-" and "_" are equivalent. Durations are texts such as "250ms".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from functools import partial
from types import NoneType

from gnsq_like.errors import InvalidOption, UsageError, did_you_mean
from gnsq_like.options import ConnectionOptions, ReaderOptions
from gnsq_like.options.text import parse_duration, read_text

#: Options whose values cannot be written as text, or that a tool decides itself.
NOT_AS_TEXT = frozenset({"address_map", "ssl_context", "discovery_filter", "decoder", "encoder", "own_thread", "spawn"})
#: go-nsq's names of our options.
GO_NAMES = {"dial_timeout": "connect_timeout", "lookupd_poll_timeout": "lookupd_timeout"}
#: Options of go-nsq that are accepted without effect.
WITHOUT_EFFECT = frozenset({"read_timeout", "rdy_redistribute_interval"})
#: Values of go-nsq's tls_min_version; ours is TLS 1.2 at least.
_TLS_VERSIONS = frozenset({"ssl3.0", "tls1.0", "tls1.1", "tls1.2"})
#: The floats that are not seconds.
_PLAIN_FLOATS = frozenset({"lookupd_poll_jitter", "rate_limit"})


def text_options(kind: type[ConnectionOptions]) -> dict[str, Field[object]]:
    """The options of ReaderOptions or ProducerOptions that can be given as text, by name."""
    return {option.name: option for option in fields(kind) if option.name not in NOT_AS_TEXT}


def is_switch(option: Field[object]) -> bool:
    """Whether the option is true or false, so that its name alone means true."""
    kind = option.metadata["kind"]
    return bool(kind is bool)


def is_duration(option: Field[object]) -> bool:
    """Whether the option is in seconds."""
    return bool(option.metadata["kind"] is float) and option.name not in _PLAIN_FLOATS


def parse_value(kind: type[ConnectionOptions], name: str, text: str, *, default_unit: str = "") -> object:
    """The value of one option. Bounds and combinations are checked when all options are known.

    :param default_unit: the unit of a duration that is a bare number; without it, only 0 may be bare
    :raises InvalidOption: if it is malformed
    """
    return _converted(text_options(kind)[name], text, default_unit)


def _converted(option: Field[object], text: str, default_unit: str) -> object:
    kinds = option.metadata["kind"]
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    also, word = option.metadata["also"], text.strip().lower()
    if option.name == "lookupd_cert" and "," in text:
        return tuple(text.split(",", 1))
    if word == "-1" and -1 in also:
        return -1
    if option.name == "msg_timeout" and word == "0":
        return None
    if text in also:
        return text
    read_float = partial(parse_duration, default_unit=default_unit) if is_duration(option) else float
    try:
        return read_text(text, (*kinds, NoneType) if None in also else kinds, read_float)
    except UsageError as exc:
        raise InvalidOption(option.name, "<hidden>" if option.metadata["secret"] else text, str(exc)) from None


def parse_pairs(kind: type[ConnectionOptions], pairs: Iterable[str]) -> dict[str, object]:
    """The options in texts such as "max_attempts,3"; a name alone means true, as in NSQ's own utilities.

    :raises InvalidOption: for an unknown name or a malformed value
    """
    given: dict[str, object] = {}
    for pair in pairs:
        written, _, text = pair.partition(",")
        name = written.strip().replace("-", "_").lower()
        name = GO_NAMES.get(name, name)
        text = text if "," in pair else "true"
        if name in WITHOUT_EFFECT:
            continue
        if name in _TRANSLATED:
            given |= _TRANSLATED[name](text)
        elif name in text_options(kind):
            given[name] = parse_value(kind, name, text)
        else:
            known = [*text_options(kind), *GO_NAMES, *_TRANSLATED]
            raise InvalidOption(name, "<hidden>", f"there is no such option{did_you_mean(name, known)}")
    return given


def _skip_verify(text: str) -> dict[str, object]:
    return {"verify": not parse_value(ReaderOptions, "verify", text)}


def _min_version(text: str) -> dict[str, object]:
    if text not in _TLS_VERSIONS:
        raise InvalidOption("tls_min_version", text, f"it must be one of {', '.join(sorted(_TLS_VERSIONS))}")
    return {}


#: Options of go-nsq that express one of ours differently.
_TRANSLATED: dict[str, Callable[[str], dict[str, object]]] = {
    "tls_insecure_skip_verify": _skip_verify,
    "tls_min_version": _min_version,
}
