"""Starts everything: an nsqd, and gunicorn with two gevent workers.

    pip install ".[flask,gunicorn]"
    python examples/flask_clicks/run.py [PORT]

Then open http://127.0.0.1:8000/ in two windows and click. Ctrl-C ends everything.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gnsq_like.testing import running_nsqd


def main(port: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "clicks:create_app()"]
    with running_nsqd() as nsqd:
        environment = {**os.environ, "NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        with subprocess.Popen(command, cwd=Path(__file__).parent, env=environment) as server:
            try:
                return server.wait()
            except KeyboardInterrupt:
                return 0
            finally:
                server.terminate()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["8000"]))
