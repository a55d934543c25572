"""Runs Readers in several processes: starts, watches, replaces and ends them. The command is ``gnsq-like run``.

``plan.py``     what to run, and how: the options of all commands that do it
``master.py``   the process that supervises; loads neither gevent nor the user's code, so neither can block or crash it
``roster.py``   decisions without I/O: which processes should exist, and which must end
``process.py``  how processes are started, talk over pipes, and log
``worker.py``   a process with Readers; ``boot.py`` is the script that each process begins with
``user_code.py`` the user's Readers, found by name
``pages.py``    /healthz and /metrics
"""
