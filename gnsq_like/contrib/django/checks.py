"""System checks: find errors in the setting ``NSQ`` and in the readers before anything runs.

=================  =====================================================================================
gnsq_like.E001     ``NSQ`` is not a dictionary
gnsq_like.E002     a key or a value of ``NSQ``, or of ``NSQ_…`` in the environment, is wrong
gnsq_like.E003     no address is set
gnsq_like.E004     a reader's topic, channel or options are wrong
gnsq_like.E005     two readers have the same name, or one has no name
gnsq_like.E006     a reader runs several handlers in greenlets of one thread: they share a database connection
gnsq_like.W001     one ``nsq_run`` of all readers would run several handlers in greenlets of one thread
=================  =====================================================================================

They construct Readers and a Producer, which only checks the options, and drop them.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from gnsq_like.contrib.django import conf, publishing, readers
from gnsq_like.errors import InvalidOption, UsageError

_IN_THREADS = 'leave spawn out, or set spawn="thread"; or patch the process with gevent.monkey.patch_all()'


def check_settings(**_: object) -> list[CheckMessage]:
    """Each wrong key and value, then wrong combinations of them."""
    from gnsq_like.contrib.shared.settings import make_settings

    try:
        given = conf.given()
    except ImproperlyConfigured as exc:
        return [Error(str(exc), hint='Write NSQ = {"NSQD_TCP_ADDRESSES": "127.0.0.1:4150"}.', id="gnsq_like.E001")]
    found: list[CheckMessage] = []
    for key, value in given.items():
        try:
            make_settings({key: value}, own=conf.OWN, environ={}, label=conf.LABEL)
        except InvalidOption as exc:
            found.append(_wrong_setting(exc))
    if found:
        return found
    try:
        settings = conf.settings()
    except ImproperlyConfigured as exc:
        # Each key is right by itself, so the error is in the environment.
        assert isinstance(exc.__cause__, InvalidOption)
        return [_wrong_setting(exc.__cause__)]
    if settings.own["METRICS"] and find_spec("prometheus_client") is None:
        text = f"{conf.LABEL.format('METRICS')} needs prometheus-client, which is not installed."
        return [Error(text, hint="Install the extra [prometheus].", id="gnsq_like.E002")]
    if settings.own["TRACING"] and find_spec("opentelemetry") is None:
        text = f"{conf.LABEL.format('TRACING')} needs opentelemetry-api, which is not installed."
        return [Error(text, hint="Install the extra [otel].", id="gnsq_like.E002")]
    if not (settings.has_producer_address or conf.has_address(settings.reader)):
        return [
            Error(
                "No nsqd and no nsqlookupd is set.",
                hint='Set NSQ["NSQD_TCP_ADDRESSES"] or NSQ["LOOKUPD_HTTP_ADDRESSES"], or NSQ_NSQD_TCP_ADDRESSES or '
                "NSQ_LOOKUPD_HTTP_ADDRESSES in the environment.",
                id="gnsq_like.E003",
            )
        ]
    try:
        if settings.has_producer_address:
            publishing.make_producer()
        if conf.has_address(settings.reader):
            settings.make_reader("topic", "channel", None, {})
    except (UsageError, ImproperlyConfigured) as exc:
        # An address is checked when a Reader or a Producer is made, and its error knows no key.
        address = str(getattr(exc, "address", ""))
        keys = [conf.LABEL.format(key) for key, value in given.items() if address and address in str(value)]
        hint = f"Look at {' and '.join(keys)}." if keys else "It is one of the settings in NSQ."
        return [Error(_sentence(exc), hint=hint, id="gnsq_like.E002")]
    return []


def check_readers(**_: object) -> list[CheckMessage]:
    """Errors in the readers of all apps, singly and together; only their names while the settings are wrong."""
    declared = readers.declared()
    found: list[CheckMessage] = []
    for name, count in Counter(each.name for each in declared).items():
        if count > 1 or not name:
            places = ", ".join(each.place for each in declared if each.name == name)
            text = f"{count} readers have the name {name!r}: {places}." if name else f"A reader has no name: {places}."
            found.append(Error(text, hint="Give each one a name: @reader(..., name=...).", id="gnsq_like.E005"))
    if check_settings():
        return found
    right = []
    for each in declared:
        try:
            each.make()
            right.append(each)
        except (UsageError, TypeError) as exc:
            hint = f"It is declared with {each.place}."
            found.append(Error(f"Reader {each.name!r}: {_sentence(exc)}", hint=hint, id="gnsq_like.E004"))
    return found + _shared_connections(right)


def _shared_connections(right: list[readers.Declared]) -> list[CheckMessage]:
    counts = readers.unpatched_greenlets(right)
    found: list[CheckMessage] = [
        Error(
            f"Reader {name!r} would run {count} handlers at once in greenlets of one thread, where they share one "
            "database connection and its transaction.",
            hint=f"Either {_IN_THREADS}; or set concurrency=1.",
            id="gnsq_like.E006",
        )
        for name, count in counts.items()
        if count > 1
    ]
    if not found and len(counts) > 1:
        found.append(
            Warning(
                f"Readers {', '.join(map(repr, counts))} run their handlers in greenlets: one nsq_run with more than "
                "one of them would share one database connection and its transaction, and refuses to start.",
                hint=f"Give each of them an nsq_run of its own; or {_IN_THREADS}.",
                id="gnsq_like.W001",
            )
        )
    return found


def _wrong_setting(exc: InvalidOption) -> Error:
    text, _, near = exc.reason.partition("; did you mean ")
    if near:
        hint = f"Did you mean {near}"
    elif text == "there is no such setting":
        hint = "A key is an option's name in capitals, with or without READER_ or PRODUCER_ before it."
    else:
        hint = f"The value is {exc.value!r}."
    return Error(f"{exc.option}: {text}.", hint=hint, id="gnsq_like.E002")


def _sentence(exc: Exception) -> str:
    text = str(exc)
    return text if text.endswith((".", "?")) else f"{text}."
