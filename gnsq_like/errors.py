"""Every exception that gnsq_like raises, and nsqd's error codes.

::

    NSQError
    ├── UsageError (also a ValueError)     an invalid call; nothing was sent
    │   ├── InvalidName                    a topic or channel name
    │   ├── InvalidBody                    a message body: empty, too large, or of the wrong type
    │   ├── InvalidAddress                 neither host:port, [ipv6]:port nor unix:/path
    │   └── InvalidOption                  an option: unknown, of the wrong type, or out of range
    ├── DecodeError (also a ValueError)    a body is not what the decoder expects (decoder, body, reason)
    ├── NotRunning                         the Reader, Producer or Connection is stopped, or was never started
    ├── ProtocolError                      the peer violated the protocol
    │   └── TLSError                       TLS failed (kind, detail)
    ├── NegotiationFailed                  nsqd lacks a feature, or requires one that is not set up (feature)
    ├── NsqdError                          nsqd answered with an error (code, detail, fatal)
    ├── ConnectionFailed                   connecting failed (dial, IDENTIFY, TLS, AUTH, SUB)
    ├── ConnectionLost                     an open connection ended
    ├── PublishError                       a publish was not confirmed
    │   ├── NotSent                        nsqd has not seen it: a retry is safe
    │   ├── PublishRefused                 nsqd refused it: a retry is pointless
    │   └── OutcomeUnknown                 sent, but not answered: nsqd may or may not have it
    └── HTTPError                          an HTTP API gave no usable answer
        ├── HTTPRequestFailed              no valid response (refused, timed out, too large, not JSON)
        └── HTTPStatusError                a response with an error status

    Requeue                                not an error: raised by a handler to requeue its message

Exceptions carry data as attributes and build their text from it. Rules for editors: derive from NSQError, shadow no
builtin name, keep this tree in step with the classes.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

__all__ = [
    "ERROR_CODES",
    "ConnectionFailed",
    "ConnectionLost",
    "DecodeError",
    "HTTPError",
    "HTTPRequestFailed",
    "HTTPStatusError",
    "InvalidAddress",
    "InvalidBody",
    "InvalidName",
    "InvalidOption",
    "NSQError",
    "NegotiationFailed",
    "NotRunning",
    "NotSent",
    "NsqdError",
    "OutcomeUnknown",
    "ProtocolError",
    "PublishError",
    "PublishRefused",
    "Requeue",
    "TLSError",
    "UsageError",
    "is_incurable",
]

#: The meaning of an error of nsqd for the publish that it answers:
#: "refused": invalid or not permitted, so a retry would be refused again; "not taken": nsqd does not have it, for a
#: reason that may pass, so it is tried again; "unknown": nsqd may have a part of it.
PublishVerdict = Literal["refused", "not taken", "unknown"]


class ErrorCode(NamedTuple):
    """The meaning of one of nsqd's error codes."""

    #: Its meaning for a publish, unless its text matches one of ``texts``.
    publish: PublishVerdict = "refused"
    #: Regular expressions for the beginning of nsqd's text, with another meaning for a publish.
    texts: tuple[tuple[str, PublishVerdict], ...] = ()
    #: Whether nsqd closes the connection after it.
    fatal: bool = True
    #: Whether it would also meet the next try to connect or subscribe (docs/internals 1.3 to 1.5).
    incurable: bool = False
    #: Whether that may change by itself: see ``is_incurable``.
    may_pass: bool = False
    #: What to do about it.
    hint: str = ""


# The time that nsqd allows for a command was over before all of it had come (docs/internals 1.9 to 1.11), or the
# stream was cut or damaged.
_NOT_READ: tuple[str, PublishVerdict] = (r"[MD]?PUB failed to read ", "not taken")
# nsqd executes commands in order, so a publish that is answered with the error of an earlier command, one without an
# answer of its own, was not executed.
_OTHER_COMMAND: tuple[str, PublishVerdict] = (r"(cannot )?(RDY|FIN|REQ|TOUCH) |invalid message ID", "not taken")

#: nsqd's error codes (docs/internals 1). An unknown one counts as ``ErrorCode()``.
#:
#: :meta hide-value:
ERROR_CODES: dict[str, ErrorCode] = {
    "E_INVALID": ErrorCode(texts=(_OTHER_COMMAND,), incurable=True),
    "E_BAD_PROTOCOL": ErrorCode(),
    "E_BAD_BODY": ErrorCode(texts=(_NOT_READ,), incurable=True),
    "E_BAD_TOPIC": ErrorCode(incurable=True),
    "E_BAD_CHANNEL": ErrorCode(incurable=True),
    "E_BAD_MESSAGE": ErrorCode(texts=(_NOT_READ,)),
    "E_IDENTIFY_FAILED": ErrorCode(),
    # The auth server did not answer, or refused the secret when nsqd asked again; the next connection has a new one.
    "E_AUTH_FAILED": ErrorCode(
        "not taken", incurable=True, may_pass=True, hint="check auth_secret=, and whether nsqd's auth server answers"
    ),
    "E_AUTH_DISABLED": ErrorCode(),
    "E_AUTH_ERROR": ErrorCode(),
    "E_AUTH_FIRST": ErrorCode(incurable=True),
    "E_UNAUTHORIZED": ErrorCode(
        incurable=True, may_pass=True, hint="check auth_secret=, and its permissions for this topic and channel"
    ),
    "E_SUB_FAILED": ErrorCode(),
    # The topic is being deleted, nsqd is stopping, or its disk failed. Nothing is kept of the message.
    "E_PUB_FAILED": ErrorCode("not taken"),
    "E_DPUB_FAILED": ErrorCode("not taken"),
    # nsqd stores the messages one by one; this code says that it stopped somewhere.
    "E_MPUB_FAILED": ErrorCode("unknown"),
    "E_FIN_FAILED": ErrorCode(fatal=False),
    "E_REQ_FAILED": ErrorCode(fatal=False),
    "E_TOUCH_FAILED": ErrorCode(fatal=False),
}


class NSQError(Exception):
    """The root of all errors raised by gnsq_like."""


class UsageError(NSQError, ValueError):
    """The call is invalid; nothing was sent and nothing changed."""


class InvalidName(UsageError):
    """A topic or channel name that nsqd would refuse.

    :ivar kind: ``"topic"`` or ``"channel"``
    :ivar name: the invalid name
    """

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        if not isinstance(self.name, str):
            return f"invalid {self.kind} name {self.name!r}: it must be of type str, not {type(self.name).__name__}"
        return (
            f"invalid {self.kind} name {self.name!r}: it must have 1 to 64 characters of a-z A-Z 0-9 . _ -, "
            f'and may end in "#ephemeral"'
        )


class InvalidBody(UsageError):
    """A message body that cannot be published: empty, too large, or not bytes."""


class InvalidAddress(UsageError):
    """An address that is neither "host:port", "[ipv6]:port" nor "unix:/path".

    :ivar address: the invalid address
    :ivar reason: what is wrong with it
    :ivar forms: the valid forms
    """

    def __init__(self, address: object, reason: str, forms: str = '"host:port", "[ipv6]:port" or "unix:/path"') -> None:
        super().__init__(address, reason, forms)
        self.address = address
        self.reason = reason
        self.forms = forms

    def __str__(self) -> str:
        return f"invalid address {self.address!r}: {self.reason}; write {self.forms}"


class InvalidOption(UsageError):
    """An option that is unknown, of the wrong type, or out of range.

    :ivar option: the option's name
    :ivar value: the invalid value
    :ivar reason: what a valid value is
    """

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid option {self.option}={self.value!r}: {self.reason}"


class DecodeError(NSQError, ValueError):
    """A message's body cannot be decoded; ``__cause__`` is the decoder's exception, if it raised one.

    :ivar decoder: ``"JSON"``, ``"msgpack"``, or ``"for NAME"`` with the name of the Reader's decoder
    :ivar body: the whole body
    :ivar reason: what the decoder says
    """

    #: How much of the body the text shows.
    SHOWN_BYTES: ClassVar[int] = 80

    def __init__(self, decoder: str, body: bytes, reason: str) -> None:
        super().__init__(decoder, body, reason)
        self.decoder = decoder
        self.body = body
        self.reason = reason

    def __str__(self) -> str:
        begins = "it is" if len(self.body) <= self.SHOWN_BYTES else f"it has {len(self.body)} bytes and begins with"
        return f"the body is not {self.decoder}: {self.reason}; {begins} {self.body[: self.SHOWN_BYTES]!r}"


class NotRunning(NSQError):
    """The Reader, Producer or Connection is stopped or not started; or is running, and cannot be started again."""


class ProtocolError(NSQError):
    """The peer sent bytes that violate the protocol; the connection cannot be used further."""


class TLSError(ProtocolError):
    """The TLS handshake failed, or TLS failed later.

    :ivar kind: ``"wrong_hostname"``, ``"unknown_ca"``, ``"expired"``, ``"not_yet_valid"``, ``"certificate"``
        (another fault of the peer's certificate), ``"refused"`` (by the peer), ``"version"``, ``"not_tls"`` or
        ``"protocol"`` (anything else)
    :ivar detail: OpenSSL's description
    """

    #: The text for each kind, with what to do.
    TEXTS: ClassVar[dict[str, str]] = {
        "wrong_hostname": "the certificate is not for this host: {}; set server_hostname= to the name in it",
        "unknown_ca": "the certificate's issuer is unknown: {}; set tls_root_ca_file= to the CA's certificate",
        "expired": "the certificate has expired: {}",
        "not_yet_valid": "the certificate is not valid yet: {}",
        "certificate": "the certificate was rejected: {}",
        "refused": "the peer refused: {}; if it requires a client certificate, set tls_cert= and tls_key=",
        "version": "the two sides have no TLS version in common: {}",
        "not_tls": "the peer's data is not TLS: {}",
        "protocol": "{}",
    }

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return "TLS: " + self.TEXTS[self.kind].format(self.detail.rstrip("."))


class NegotiationFailed(NSQError):
    """nsqd does not offer a required feature, or requires one that is not set up; a retry would fail again.

    :ivar feature: ``"tls_v1"``, ``"snappy"``, ``"deflate"`` or ``"auth"``
    :ivar reason: the fault, and how to correct it
    :ivar may_pass: whether a file or a callable of the options is at fault, which may be right at a later try
    """

    def __init__(self, feature: str, reason: str, may_pass: bool = False) -> None:
        super().__init__(feature, reason, may_pass)
        self.feature = feature
        self.reason = reason
        self.may_pass = may_pass

    def __str__(self) -> str:
        return f"{self.feature}: {self.reason}"


class NsqdError(NSQError):
    """nsqd answered with an error frame.

    :ivar code: such as ``"E_BAD_TOPIC"``
    :ivar detail: nsqd's text after the code; may be empty
    :ivar fatal: whether nsqd closes the connection; an unknown code counts as fatal
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.fatal: bool = ERROR_CODES.get(code, ErrorCode()).fatal

    @classmethod
    def from_payload(cls, payload: bytes) -> NsqdError:
        """Parse the payload of an error frame: the code, a space, the detail."""
        code, _, detail = payload.decode("utf-8", "replace").partition(" ")
        return cls(code, detail)

    @property
    def publish_verdict(self) -> PublishVerdict:
        """Its meaning for a publish that it answers."""
        known = ERROR_CODES.get(self.code, ErrorCode())
        matching = (verdict for text, verdict in known.texts if re.match(text, self.detail))
        return next(matching, known.publish)

    @property
    def text(self) -> str:
        """Code and detail, and what to do about it where that is known."""
        hint = ERROR_CODES.get(self.code, ErrorCode()).hint
        if self.detail.endswith("(TLS required)"):
            # For every command but IDENTIFY, with nsqd's flag tls-required (docs/internals 1.3).
            hint = "set tls_v1=True"
        return f"{self.code} {self.detail}".rstrip() + (hint and f"; {hint}")

    def __str__(self) -> str:
        return f"nsqd answered {self.text}"


class _AtAddress(NSQError):
    """An error with one peer; ``__cause__`` is the exception that caused it, if any."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason


class ConnectionFailed(_AtAddress):
    """Connecting failed; ``__cause__`` is nsqd's, TLS's or the network's error.

    :ivar address: the peer
    :ivar reason: what happened
    """

    @classmethod
    def unexpected(cls, address: str, exc: BaseException) -> ConnectionFailed:
        """Wrap an exception that connecting should not raise."""
        failure = cls(address, f"unexpected: {exc!r}")
        failure.__cause__ = exc
        return failure

    def __str__(self) -> str:
        return f"no connection to {self.address}: {self.reason}"


class ConnectionLost(_AtAddress):
    """An open connection ended.

    :ivar address: the peer
    :ivar reason: what happened
    """

    def __str__(self) -> str:
        return f"connection to {self.address} lost: {self.reason}"


#: A part of each text about a failure for which this process, or its machine, has no free file descriptors.
NO_DESCRIPTORS = "no file descriptor is free"


def reason_of(exc: BaseException) -> str:
    """The operating system's words for this exception, or else its text, or its type."""
    words = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
    if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        return f"{words}: {NO_DESCRIPTORS} (ulimit -n)"
    return words


def is_incurable(error: NSQError, connected_before: bool = False) -> bool:
    """Whether a retry cannot help against this failure to connect, because of nsqd's settings, TLS or the options.

    :param connected_before: whether these options have led to a connection: then certificates, files and secrets were
        right, and may be right again; a feature or name that nsqd refuses remains incurable
    """
    cause = error.__cause__
    if isinstance(cause, NsqdError):
        code = ERROR_CODES.get(cause.code, ErrorCode())
        incurable, may_pass = code.incurable, code.may_pass
    elif isinstance(cause, TLSError):
        incurable, may_pass = cause.kind != "protocol", cause.kind != "version"
    else:
        incurable = isinstance(cause, NegotiationFailed)
        may_pass = isinstance(cause, NegotiationFailed) and cause.may_pass
    return incurable and not (connected_before and may_pass)


class PublishError(NSQError):
    """A publish that nsqd did not confirm; the three subclasses say what to do next."""


class NotSent(PublishError):
    """No nsqd has seen this publish; a retry cannot make a duplicate."""


class PublishRefused(PublishError):
    """nsqd refused this publish, and would refuse a retry.

    :ivar error: nsqd's :class:`NsqdError`
    :ivar address: the nsqd
    :ivar description: what it refused: the size, the topic, the delay
    """

    def __init__(self, error: NsqdError, address: str, description: str = "") -> None:
        super().__init__(error, address, description)
        self.error = error
        self.address = address
        self.description = description

    def __str__(self) -> str:
        which = f" of {self.description}" if self.description else ""
        return f"nsqd at {self.address} refused the publish{which}: {self.error.text}"


class OutcomeUnknown(PublishError):
    """The publish was sent but not answered: nsqd may or may not have it, so a retry may make a duplicate.

    :ivar address: the nsqd; empty if those in ``confirmed`` have it and no other does
    :ivar reason: why there was no answer
    :ivar confirmed: with ``replicas``: the nsqds that confirmed it, fewer than the quorum
    """

    def __init__(self, address: str, reason: str, confirmed: tuple[str, ...] = ()) -> None:
        super().__init__(address, reason, confirmed)
        self.address = address
        self.reason = reason
        self.confirmed = confirmed

    def __str__(self) -> str:
        if self.confirmed:
            where = f"{self.address}: " if self.address else ""
            return f"confirmed by {', '.join(self.confirmed)} only; {where}{self.reason}"
        return f"outcome unknown, sent to nsqd at {self.address} but not confirmed: {self.reason}"


class HTTPError(NSQError):
    """An HTTP API of nsqd or nsqlookupd gave no usable answer."""


class HTTPRequestFailed(HTTPError):
    """No valid response: refused, timed out, too large, or not in the API's format.

    :ivar url: the URL, without credentials
    :ivar reason: what happened
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class HTTPStatusError(HTTPError):
    """A response with an error status.

    :ivar url: the URL, without credentials
    :ivar status: the HTTP status code
    :ivar message: the daemon's text, such as ``"TOPIC_NOT_FOUND"``
    :ivar https_port: the port at which the daemon wants to be asked over https, if it refuses http; otherwise None
    """

    def __init__(self, url: str, status: int, message: str, https_port: int | None = None) -> None:
        super().__init__(url, status, message)
        self.url = url
        self.status = status
        self.message = message
        self.https_port = https_port

    def __str__(self) -> str:
        # A path that no handler is registered for, as of nsqlookupd's API at an nsqd (docs/internals 3.1).
        hint = "; is this the right port?" if (self.status, self.message) == (404, "NOT_FOUND") else ""
        return f"{self.url}: HTTP {self.status} {self.message}".rstrip() + hint


#: Seconds; what is bounded must be below: far more than every limit of nsqd, and what it can read.
_MOST_SECONDS = 2**31


def check_seconds(
    name: str, value: object, *, or_none: bool = False, minimum: float | None = None, above: float | None = None
) -> None:
    """Raise InvalidOption if ``value`` is not a number of seconds.

    :param name: the parameter that it was given for
    :param or_none: whether None is valid too
    :param minimum: the smallest valid number; without a bound, a negative one, such as a time left, is as 0
    :param above: what it must be larger than
    """
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidOption(name, value, f"it must be a number of seconds{', or None' if or_none else ''}")
    if minimum is not None and value < minimum:
        raise InvalidOption(name, value, f"it must be at least {minimum} seconds")
    if above is not None and value <= above:
        raise InvalidOption(name, value, f"it must be above {above} seconds")
    if (minimum is not None or above is not None) and value >= _MOST_SECONDS:
        raise InvalidOption(name, value, f"it must be below {_MOST_SECONDS} seconds")


class Requeue(Exception):
    """Raise this in a handler to requeue its message without logging an error.

    :param delay: seconds until nsqd delivers it again; None for the Reader's delay
    :param backoff: whether this counts as a failure for the Reader's backoff
    :raises InvalidOption: if delay is not a number of seconds below 2**31; raised here so that the traceback shows the
        handler's line
    """

    #: Whether this delivery counts for ``max_attempts``.
    counts = True

    def __init__(self, delay: float | None = None, backoff: bool = True) -> None:
        check_seconds("delay", delay, or_none=True, minimum=0)
        super().__init__(delay, backoff)
        self.delay = delay
        self.backoff = backoff

    def __str__(self) -> str:
        """For dead letters."""
        delay = "the Reader's delay" if self.delay is None else f"a delay of {self.delay:g} s"
        return f"the handler asked for another delivery after {delay}"


def did_you_mean(name: object, known: Iterable[str], label: str = "{}") -> str:
    """The end of an error message, ``"; did you mean NAME?"``, or "" if no known name is similar.

    Of two names that end in the given one, the first is meant: ``default_requeue_delay`` for ``requeue_delay``.

    :param known: the names that exist; case is ignored
    :param label: a format for the name
    """
    import difflib  # only for a text that is seldom needed

    by_lower, word = {each.lower(): each for each in known}, str(name).lower()
    near = [each for each in by_lower if each.endswith(f"_{word}")]
    if word in by_lower or len(near) > 2:  # the first of many would be a guess
        near = []
    near = near or difflib.get_close_matches(word, by_lower, n=1)
    return f"; did you mean {label.format(by_lower[near[0]])}?" if near else ""
