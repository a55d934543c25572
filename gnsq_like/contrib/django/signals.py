"""Signals about messages, for logs, metrics and traces.

Each is sent in the thread or greenlet of the handler, inside its database connection's turn, with
``sender``, the handler as it was decorated; ``message``, a :class:`gnsq_like.Message`; and ``reader``, the
reader's name. A batch sends one for each of its messages. What a receiver raises is logged, and changes nothing.
"""

from django.dispatch import Signal

#: Before the handler is called.
message_started = Signal()

#: The handler has returned. With ``seconds``, how long it took.
message_handled = Signal()

#: The handler raised, or returned False. With ``seconds``, and ``exception``: None for False; a Requeue is one too.
message_failed = Signal()

#: The message was delivered too often, and is given up: sent before ``on_giving_up`` is called.
message_given_up = Signal()
