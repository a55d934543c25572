"""Every exception that gnsq_like raises, and nsqd's error codes.

::

    NSQError
    ├── UsageError (also a ValueError)     you asked for something that cannot be
    │   ├── InvalidName                    a topic or channel name
    │   ├── InvalidBody                    an empty, too big or wrongly typed body
    │   ├── InvalidAddress                 neither host:port, [ipv6]:port nor unix:/path
    │   └── InvalidOption                  an option of the wrong type or below its minimum
    ├── NotRunning                         a Reader, Producer or Connection that is stopped or never started
    ├── ProtocolError                      the peer sent bytes that the protocol does not allow
    │   └── TLSError                       no TLS came about, or it broke (kind, detail)
    ├── NegotiationFailed                  what was asked for and refused, or required and not given (feature)
    ├── NsqdError                          nsqd answered with an error frame (code, detail, fatal)
    ├── ConnectionFailed                   no connection came about (dial, IDENTIFY, TLS, AUTH, SUB)
    ├── ConnectionLost                     a connection that stood is gone
    ├── PublishError                       a publish that was not confirmed
    │   ├── NotSent                        nsqd has not seen it: trying again is safe
    │   ├── PublishRefused                 nsqd said no; trying the same again is pointless
    │   └── OutcomeUnknown                 sent, but no answer came: nsqd may or may not have it
    └── HTTPError                          an HTTP API gave no usable answer
        ├── HTTPRequestFailed              no answer at all (refused, timed out, too large, not JSON)
        └── HTTPStatusError                an answer with an error status

    Requeue                                not an error: raised by a handler to requeue its message

Exceptions carry data (attributes) and build their text from it. Rules for editors: derive from
NSQError, shadow no builtin name, keep this tree in step with the classes.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ERROR_CODES",
    "ConnectionFailed",
    "ConnectionLost",
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
    "is_fatal",
    "is_incurable",
]

#: nsqd's error codes, and whether nsqd closes the connection after sending one (docs/internals 1).
ERROR_CODES: dict[str, bool] = {
    "E_INVALID": True,
    "E_BAD_PROTOCOL": True,
    "E_BAD_BODY": True,
    "E_BAD_TOPIC": True,
    "E_BAD_CHANNEL": True,
    "E_BAD_MESSAGE": True,
    "E_IDENTIFY_FAILED": True,
    "E_AUTH_FAILED": True,
    "E_AUTH_DISABLED": True,
    "E_AUTH_FIRST": True,
    "E_UNAUTHORIZED": True,
    "E_SUB_FAILED": True,
    "E_PUB_FAILED": True,
    "E_MPUB_FAILED": True,
    "E_DPUB_FAILED": True,
    "E_FIN_FAILED": False,
    "E_REQ_FAILED": False,
    "E_TOUCH_FAILED": False,
}


#: nsqd's refusals that the same request would meet again (docs/internals 1.3 to 1.5).
_INCURABLE_CODES = frozenset(
    {"E_AUTH_FAILED", "E_AUTH_FIRST", "E_UNAUTHORIZED", "E_BAD_TOPIC", "E_BAD_CHANNEL", "E_BAD_BODY", "E_INVALID"}
)


def is_fatal(code: str) -> bool:
    """Whether nsqd closes the connection after an error frame with this code; an unknown code counts as fatal."""
    return ERROR_CODES.get(code, True)


class NSQError(Exception):
    """The root of all errors raised by gnsq_like."""


class UsageError(NSQError, ValueError):
    """The call itself is wrong; nothing was sent and nothing changed."""


class InvalidName(UsageError):
    """A topic or channel name that nsqd would refuse.

    :ivar kind: ``"topic"`` or ``"channel"``
    :ivar name: what was given
    """

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return (
            f"invalid {self.kind} name {self.name!r}: 1 to 64 characters of a-z A-Z 0-9 . _ - are allowed, "
            f'and "#ephemeral" at the end'
        )


class InvalidBody(UsageError):
    """A message body that cannot be published: empty, too big, or not bytes."""


class InvalidAddress(UsageError):
    """An address that is neither "host:port", "[ipv6]:port" nor "unix:/path"."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f'invalid address {self.address!r}: {self.reason}; write "host:port", "[ipv6]:port" or "unix:/path"'


class InvalidOption(UsageError):
    """An option of the wrong type, below its minimum, or unknown.

    :ivar option: the option's name
    :ivar value: what was given
    :ivar reason: what would be right
    """

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid option {self.option}={self.value!r}: {self.reason}"


class NotRunning(NSQError):
    """A call that needs a running Reader, Producer or Connection, made before its start or after its stop."""


class ProtocolError(NSQError):
    """The peer sent bytes that the protocol does not allow; the connection cannot go on."""


class TLSError(ProtocolError):
    """No TLS came about, or it broke.

    :ivar kind: ``"wrong_hostname"``, ``"unknown_ca"``, ``"expired"``, ``"not_yet_valid"``, ``"certificate"``
        (another fault of the peer's certificate), ``"refused"`` (by the peer), ``"version"``, ``"not_tls"`` or
        ``"protocol"`` (anything else)
    :ivar detail: OpenSSL's words
    """

    #: What one of each kind says, and what to do about it.
    TEXTS: ClassVar[dict[str, str]] = {
        "wrong_hostname": "the certificate is not for this host: {}; server_hostname= says which name it carries",
        "unknown_ca": "the certificate's issuer is unknown: {}; tls_root_ca_file= says whom to trust",
        "expired": "the certificate has expired: {}",
        "not_yet_valid": "the certificate is not valid yet: {}",
        "certificate": "the certificate was refused: {}",
        "refused": "the peer refused: {}; it may require a certificate of this side: tls_cert= and tls_key=",
        "version": "no version of TLS that both sides allow: {}",
        "not_tls": "what the peer sent is not TLS: {}",
        "protocol": "{}",
    }

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return "TLS: " + self.TEXTS[self.kind].format(self.detail)


class NegotiationFailed(NSQError):
    """nsqd does not do what was asked of it, or requires what was not given; the same again would fail again.

    :ivar feature: ``"tls_v1"``, ``"snappy"``, ``"deflate"`` or ``"auth"``
    :ivar reason: what happened, and what to do
    """

    def __init__(self, feature: str, reason: str) -> None:
        super().__init__(feature, reason)
        self.feature = feature
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.feature}: {self.reason}"


class NsqdError(NSQError):
    """nsqd answered with an error frame.

    :ivar code: the first word, such as ``"E_BAD_TOPIC"``
    :ivar detail: nsqd's text after the code, may be empty
    :ivar fatal: whether nsqd closes the connection after it
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.fatal = is_fatal(code)

    @classmethod
    def from_payload(cls, payload: bytes) -> NsqdError:
        """Parse the payload of an error frame: the code, a space, the detail."""
        code, _, detail = payload.decode("utf-8", "replace").partition(" ")
        return cls(code, detail)

    def __str__(self) -> str:
        return f"nsqd answered {self.code} {self.detail}".rstrip()


class _AtAddress(NSQError):
    """An error that happened with one peer; the causing exception, if any, is ``__cause__``."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason


class ConnectionFailed(_AtAddress):
    """No connection came about.

    :ivar address: which peer
    :ivar reason: what happened
    """

    @classmethod
    def unexpected(cls, address: str, exc: BaseException) -> ConnectionFailed:
        """For what a try to connect should not have raised."""
        failure = cls(address, f"unexpected: {exc!r}")
        failure.__cause__ = exc
        return failure

    def __str__(self) -> str:
        return f"no connection to {self.address}: {self.reason}"


class ConnectionLost(_AtAddress):
    """A connection that stood is gone.

    :ivar address: which peer
    :ivar reason: what happened
    """

    def __str__(self) -> str:
        return f"connection to {self.address} lost: {self.reason}"


def is_incurable(error: NSQError) -> bool:
    """Whether trying again cannot help against this failure to connect, because nsqd or TLS refused for good."""
    cause = error.__cause__
    if isinstance(cause, NsqdError):
        return cause.code in _INCURABLE_CODES
    if isinstance(cause, TLSError):
        return cause.kind != "protocol"
    return isinstance(cause, NegotiationFailed)


class PublishError(NSQError):
    """A publish that nsqd did not confirm; its three kinds say what to do next."""


class NotSent(PublishError):
    """No nsqd has seen this publish; trying again cannot make a duplicate."""


class PublishRefused(PublishError):
    """nsqd refused this publish; the same again would be refused again.

    :ivar error: nsqd's :class:`NsqdError`
    :ivar address: which nsqd
    """

    def __init__(self, error: NsqdError, address: str) -> None:
        super().__init__(error, address)
        self.error = error
        self.address = address

    def __str__(self) -> str:
        return f"nsqd at {self.address} refused the publish: {self.error.code} {self.error.detail}".rstrip()


class OutcomeUnknown(PublishError):
    """The publish was sent, but its answer never came: nsqd may or may not have it.

    Trying again may make a duplicate.

    :ivar address: which nsqd
    :ivar reason: why no answer came
    :ivar confirmed: with replicas: the nsqds that have it for certain, though fewer than asked for
    """

    def __init__(self, address: str, reason: str, confirmed: tuple[str, ...] = ()) -> None:
        super().__init__(address, reason, confirmed)
        self.address = address
        self.reason = reason
        self.confirmed = confirmed

    def __str__(self) -> str:
        if self.confirmed:
            return f"confirmed by {', '.join(self.confirmed)} only; {self.address}: {self.reason}"
        return f"outcome unknown, sent to nsqd at {self.address} but not confirmed: {self.reason}"


class HTTPError(NSQError):
    """An HTTP API of nsqd or nsqlookupd gave no usable answer."""


class HTTPRequestFailed(HTTPError):
    """No usable answer: refused, timed out, too large, or not what the API promises.

    :ivar url: what was asked, without credentials
    :ivar reason: what happened
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class HTTPStatusError(HTTPError):
    """An answer with an error status.

    :ivar url: what was asked, without credentials
    :ivar status: the HTTP status code
    :ivar message: the daemon's own word for it, such as ``"TOPIC_NOT_FOUND"``
    """

    def __init__(self, url: str, status: int, message: str) -> None:
        super().__init__(url, status, message)
        self.url = url
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.url}: HTTP {self.status} {self.message}".rstrip()


class Requeue(Exception):
    """Raised by a handler to have its message requeued.

    :param delay: seconds until nsqd delivers it again; None for the Reader's own delay
    :param backoff: whether this counts as a failure for the Reader's backoff
    :raises ValueError: for a delay that is no number of seconds; here, where the handler's line is in the traceback
    """

    def __init__(self, delay: float | None = None, backoff: bool = True) -> None:
        if delay is not None and not 0 <= delay < 2**31:
            raise ValueError(f"Requeue(delay={delay!r}): it must be seconds, 0 or more")
        super().__init__(delay, backoff)
        self.delay = delay
        self.backoff = backoff
