"""Signals about messages, for logs, metrics and traces.

Each is sent in the thread or greenlet of the handler, where the database may be used, with ``sender``, the decorated
function; ``message``, a :class:`gnsq_like.Message`; and ``reader``, the reader's name. For a batch one is sent for each
of its messages. An exception in a receiver is logged, and has no other effect.
"""

from django.dispatch import Signal

#: Before the handler is called.
message_started = Signal()

#: The handler has returned. With ``seconds``, its duration.
message_handled = Signal()

#: The handler raised (a Requeue, too), or returned False. With ``seconds``, and ``exception``, which is None for False.
message_failed = Signal()

#: The message was delivered too often and is given up; sent before ``on_giving_up`` is called.
message_given_up = Signal()

#: The message is older than ``max_age`` and is not handled; sent before ``on_expired`` is called.
message_expired = Signal()
