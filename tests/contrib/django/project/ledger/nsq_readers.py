import os
import threading

from django.db import connection, transaction
from django.dispatch import receiver
from opentelemetry import trace

from gnsq_like.contrib.django import reader, signals
from ledger.models import Line
from tests.support import notes
from tests.support.notes import SUBJECT, note


@reader("orders", "book", max_in_flight=50, concurrency=4)
def book(message):
    """Finds the row that the message is about, and writes one."""
    name = message.body.decode()
    trace.get_current_span().set_attribute(SUBJECT, name)
    note("found" if Line.objects.filter(writer="request", name=name).exists() else "missed", name)
    Line.objects.create(writer="book", name=name)
    note("booked", name)


#: Both are in their transactions when either goes on.
_both = threading.Barrier(2)


@reader("pairs", "both", concurrency=2)
def pair(message):
    """One of two rolls back while both are in their transactions."""
    name = message.body.decode()
    try:
        with transaction.atomic():
            Line.objects.count()  # the transaction begins; SQLite lets only one of them write
            _both.wait(100)
            if name == "good":
                Line.objects.create(writer="pair", name=name)
            _both.wait(100)
            if name == "bad":
                raise RuntimeError("meant")
    except RuntimeError:
        pass
    note("paired", name)


@reader("work", "workers")
def work(message):
    name = message.body.decode()
    note("began", name)
    notes.work(name)
    note("ended", name)


def on_giving_up(message):
    note("gave_up", threading.get_ident())


def on_failure(message, exception):
    note("hook", connection.connection is None)
    Line.objects.count()


@reader("bad", "failing", max_attempts=2, on_giving_up=on_giving_up, on_failure=on_failure)
def fail(message):
    note("failing", connection.connection is None)
    Line.objects.count()
    raise ValueError("meant")


def on_expired(message):
    note("expired", connection.connection is None)
    Line.objects.count()


@reader("old", "expiring", max_age=1e-6, concurrency=1, on_expired=on_expired)
def never(message):
    note("never", message.body.decode())


if os.environ.get("GREENLETS"):

    @reader("greenlets", "all", concurrency=2, spawn="greenlet")
    def greenlet(message):
        note("greenlet", message.body.decode())


@receiver([signals.message_handled, signals.message_failed, signals.message_given_up, signals.message_expired])
def note_signal(signal, sender, message, reader, **more):
    names = {
        signals.message_handled: "handled",
        signals.message_failed: "failed",
        signals.message_given_up: "given_up",
        signals.message_expired: "expired",
    }
    note(f"signal_{names[signal]}", f"{reader}/{sender.__name__}/{message.body.decode()}/{more.get('exception')!r}")
