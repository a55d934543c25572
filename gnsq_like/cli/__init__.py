"""The command ``gnsq-like``. Its libraries come with the extra ``[cli]``, so they are imported only in :func:`main`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command with the arguments of this process; raises SystemExit in any case.

    So a script that only calls it, such as a job for spark-submit, ends with the status of the command. It is 1 after
    one line on stderr if click or rich is missing, and 2 if stdout cannot be written.
    """
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as exc:
        if exc.name not in {"click", "rich"}:
            raise
        print(
            f"gnsq-like: {exc.name} is not installed; the command line needs it: install the extra [cli]",
            file=sys.stderr,
        )
        sys.exit(1)
    from gnsq_like.cli.app import app
    from gnsq_like.cli.exits import StdoutFailed, checked_stdout

    try:
        with checked_stdout():
            app(prog_name="gnsq-like")
    except StdoutFailed as exc:
        print(f"gnsq-like: cannot write to stdout: {exc.strerror}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
