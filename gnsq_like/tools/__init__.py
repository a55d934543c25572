"""NSQ's utilities as functions; the commands of ``gnsq-like`` that have their names call these.

Nothing here reads arguments, prints for people or catches signals: that is ``cli/``. A function that runs until it is
told to stop takes a ``stop`` event, and returns when its messages have been answered.
"""
