"""From a message's body to a value: the option ``decoder``, and ``Message.json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from gnsq_like.errors import DecodeError, InvalidOption
from gnsq_like.runtime.callables import check_callable, undone

Decode = Callable[[bytes], Any]


def _msgpack(body: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(body)


def make_decoder(given: str | Decode | None) -> Decode | None:
    """A function for the option ``decoder``, which raises DecodeError whatever goes wrong.

    :raises InvalidOption: if its package is missing, or a callable cannot be called with a body
    """
    if given is None:
        return None
    if given == "msgpack" and find_spec("msgpack") is None:
        raise InvalidOption("decoder", given, 'msgpack is not installed: pip install "gnsq-like[msgpack]"')
    if isinstance(given, str):
        return {"json": decode_json, "msgpack": _guarded(_msgpack, "msgpack")}[given]
    check_callable("decoder", given, 1)
    return _guarded(given, f"for {getattr(given, '__qualname__', None) or repr(given)}")


def _guarded(decode: Decode, name: str) -> Decode:
    def guarded(body: bytes) -> Any:
        try:
            value = decode(body)
        except Exception as exc:
            raise DecodeError(name, body, f"{type(exc).__name__}: {exc}") from exc
        if (fault := undone(value)) is not None:
            raise DecodeError(name, body, fault)
        return value

    return guarded


#: Decodes JSON in UTF-8, UTF-16 or UTF-32; raises DecodeError.
decode_json: Decode = _guarded(json.loads, "JSON")
