"""For consumers of messages that were published through an outbox with an envelope, in any framework.

::

    event = Event.of(message.body)
    if event.sequence <= last_sequence_of(event.key):
        return                                          # a copy, or one that was overtaken

NSQ keeps no order: messages are requeued, come from several nsqds, and are handled side by side. The outbox publishes
messages of a key in order, and numbers them without gaps, so that a consumer can tell.
"""

from gnsq_like.contrib.shared.outbox.envelope import Event

__all__ = ["Event"]
