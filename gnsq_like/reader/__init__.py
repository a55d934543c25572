"""Consuming: ``Reader`` and what it is made of.

``reader`` has the public methods, ``setup`` the checked arguments, ``running`` one start up to the end of its stop, and
``group`` several Readers; a ``subscription`` is one connection with its messages; ``flow_control`` alone decides RDY,
with ``policy``; ``handlers`` calls the handler and answers messages by its outcome; ``batch`` collects messages into
lists; ``timeouts`` knows which are slow, overdue or to be touched.
"""
