"""Topics to HTTP servers, as NSQ's nsq_to_http does: ``gnsq-like to-http``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlsplit

from gevent.event import Event

from gnsq_like import Message
from gnsq_like._version import __version__
from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, InvalidOption
from gnsq_like.runtime.native import draw
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.tools.consuming import Consumption
from gnsq_like.tools.forwarding import Forwarding
from gnsq_like.tools.host_pool import MODES
from gnsq_like.tools.sources import Source

if TYPE_CHECKING:
    from requests import Session

#: The body's place in the URL of a GET.
PLACE = "%s"
#: To one destination, as for to-nsq, or to all of them.
HTTP_MODES = (*MODES, "all")
#: Bytes of a response that are read, so that its connection can be used again.
_RESPONSE_BYTES = 64 * 1024
_REDIRECTS = 10


@dataclass(frozen=True)
class Requests:
    """The requests that messages become.

    :raises InvalidOption: if an option is invalid, or excludes another
    """

    #: "POST", with the message as body; or "GET", with the message in the URL.
    method: str
    #: For GET, each has one %s in it.
    urls: Sequence[str]
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Of a POST.
    content_type: str = "application/octet-stream"
    #: Seconds.
    connect_timeout: float = 2.0
    request_timeout: float = 20.0
    #: For https: False accepts any certificate.
    verify: bool = True
    #: PEM files: CA certificates to trust, in place of the system's; the client's certificate and key.
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        option = self.method.lower()
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidOption(option, _shown(url), "it must be a URL with http or https")
            if self.method == "GET" and url.count(PLACE) != 1:
                raise InvalidOption(option, _shown(url), f"{PLACE} must be in it once, for the message")
        if not self.urls:
            raise InvalidOption(option, (), "at least one URL is needed")

    def is_success(self, status: int) -> bool:
        """Whether a response means that the message has arrived."""
        return status == 200 if self.method == "GET" else 200 <= status < 300


def parse_header(text: str) -> tuple[str, str]:
    """The name and value of "Name: value". Raises InvalidOption."""
    name, _, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not name or not value or not f"{name}{value}".isprintable():
        raise InvalidOption("header", text, "it must be 'Name: value'")
    return name, value


def post_topic(
    source: Source,
    topic: str,
    requests: Requests,
    *,
    stop: Event,
    channel: str = "to-http",
    concurrency: int = 100,
    mode: str = "hostpool",
    sample: float = 1.0,
    status_every: int = 250,
    draw: Callable[[], float] = draw,
) -> int:
    """Send the messages of a topic to HTTP servers until ``stop`` is set. May switch.

    A message is finished when a server has accepted it, and otherwise requeued with backoff. If the chosen server
    cannot be reached, the others are tried.

    :param concurrency: requests at once
    :param mode: which URL a message goes to, see :mod:`gnsq_like.tools.host_pool`; "all" for every one
    :param sample: the share of messages to send; the others are finished
    :param status_every: requests between two lines in the log; 0 for none
    :returns: the number of requests that succeeded
    :raises InvalidOption: if an argument is invalid, or a certificate cannot be read
    :raises Unreachable: none of the nsqds could be reached
    """
    if not 0 <= sample <= 1:
        raise InvalidOption("sample", sample, "it must be from 0 to 1")
    forwarding = Forwarding(
        requests.urls,
        "round-robin" if mode == "all" else mode,
        stop=stop,
        is_unsent=_is_unsent,
        status_every=status_every,
        shown=_shown,
    )
    sender = _Sender(requests, concurrency)

    def handle(message: Message) -> None:
        if sample < 1 and draw() >= sample:
            return
        if mode == "all":
            forwarding.to_all(lambda url: sender.send(url, message.body))
        else:
            forwarding.to_one(message, lambda url: sender.send(url, message.body))

    consumption = Consumption(source, stop)
    try:
        consumption.add(topic, channel, handle, concurrency=concurrency)
        consumption.wait()
    finally:
        consumption.end()
        sender.close()
    return forwarding.count


class _Sender:
    """Makes requests in native threads."""

    def __init__(self, requests: Requests, concurrency: int) -> None:
        _check_certificates(requests)
        self._requests = requests
        #: Those that no request uses now.
        self._idle: list[Session] = []
        self._threads = ThreadPool(concurrency)

    def send(self, url: str, body: bytes) -> None:
        """May switch.

        :raises HTTPRequestFailed: no response
        :raises HTTPStatusError: the server did not accept it
        """
        self._threads.call(self._request, (url, body))

    def _request(self, job: tuple[str, bytes]) -> None:
        """One request; blocks."""
        from requests import RequestException

        url, body = job
        requests = self._requests
        is_post = requests.method == "POST"
        session = self._idle.pop() if self._idle else _new_session(requests)
        try:
            with session.request(
                requests.method,
                url if is_post else url.replace(PLACE, quote_plus(body)),
                data=body if is_post else None,
                timeout=(requests.connect_timeout, requests.request_timeout),
                stream=True,
            ) as response:
                for _ in range(2):  # the second finds the end, unless the response is too long
                    if not response.raw.read(_RESPONSE_BYTES):
                        break
        except RequestException as exc:
            raise HTTPRequestFailed(_shown(url), _reason(exc)) from exc
        finally:
            self._idle.append(session)
        if not requests.is_success(response.status_code):
            raise HTTPStatusError(_shown(url), response.status_code, response.reason or "")

    def close(self) -> None:
        """May switch."""
        self._threads.close()
        while self._idle:
            self._idle.pop().close()


def _check_certificates(requests: Requests) -> None:
    import ssl

    try:
        context = ssl.create_default_context(cafile=requests.ca_file)
        if requests.cert_file:
            context.load_cert_chain(requests.cert_file, requests.key_file)
    except OSError as exc:
        name = "ca_file" if requests.ca_file else "cert_file"
        raise InvalidOption(name, getattr(requests, name), f"it cannot be used: {exc.strerror or exc}") from exc


def _new_session(requests: Requests) -> Session:
    import ssl

    from requests import Session

    session = Session()
    session.trust_env = False
    session.max_redirects = _REDIRECTS
    system = ssl.get_default_verify_paths()
    session.verify = requests.verify and (requests.ca_file or system.cafile or system.capath or True)
    if requests.cert_file:
        session.cert = (requests.cert_file, requests.key_file) if requests.key_file else requests.cert_file
    session.headers["User-Agent"] = f"to-http/{__version__} gnsq_like/{__version__}"
    if requests.method == "POST":
        session.headers["Content-Type"] = requests.content_type
    session.headers.update(requests.headers)
    return session


def _shown(url: str) -> str:
    """A URL without user and password."""
    before, at, after = url.partition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}{separator}***@{after}" if at and "/" not in before[len(scheme) + 3 :] else url


def _cause(error: Any) -> Any:
    """An error of requests without those of urllib3 that wrap it."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    return error


def _is_unsent(error: Exception) -> bool:
    """Whether there was no connection for a request."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return isinstance(_cause(error.__cause__), ConnectTimeoutError | NewConnectionError)


def _reason(error: object) -> str:
    """The text of an error, without the connection's ``repr``."""
    text = str(_cause(error))
    return text.rpartition(": ")[2] if text.startswith("<") or "object at 0x" in text else text
