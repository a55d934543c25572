"""NSQ's utilities as functions; the commands of ``gnsq-like`` that have their names call these.

Reading arguments, printing for people and signals are left to ``cli/``. A function that runs until it is stopped takes
a ``stop`` event, and returns when its messages have been answered.
"""
