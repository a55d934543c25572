"""Windows: the client is imported where neither fork nor POSIX's modules exist. More than the import is not tested."""

from __future__ import annotations

from tests.support.scripts import run_script

#: Takes away what Windows lacks. gevent is loaded before, because it has its own code for Windows.
WINDOWS = """
    import asyncio, logging.handlers, multiprocessing, os, signal, socket, ssl, subprocess, sys, tempfile
    import gevent.event, gevent.lock, gevent.os, gevent.queue, gevent.socket, gevent.ssl, gevent.threadpool
    import requests

    for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"):
        sys.modules[name] = None
    for name in ("fork", "geteuid", "getpgid", "getuid", "killpg", "register_at_fork", "setsid"):
        delattr(os, name)
    for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        delattr(signal, name)
    del socket.AF_UNIX, gevent.socket.AF_UNIX
"""


def test_the_public_names_and_pytests_plugin_are_imported() -> None:
    printed = run_script(
        WINDOWS
        + """
    import gnsq_like
    for name in gnsq_like.__all__:
        getattr(gnsq_like, name)
    import gnsq_like.testing.plugin
    gnsq_like.Reader("clicks", "archive", print, nsqd_tcp_addresses="127.0.0.1:4150")
    gnsq_like.Producer("127.0.0.1:4150")
    print(sorted(gnsq_like.__all__))
    """
    )
    assert "'Producer'" in printed[0]
