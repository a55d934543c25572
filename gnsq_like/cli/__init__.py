"""The command ``gnsq-like``. Its libraries are the extra ``[cli]``, so nothing here imports them first."""

import sys


def main() -> int:
    """Run the command with the arguments of this process.

    Returns 1 after one line on stderr where click or rich is missing. Otherwise click ends the
    process itself, with SystemExit.
    """
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as exc:
        if exc.name not in {"click", "rich"}:
            raise
        print(
            f'gnsq-like: {exc.name} is not installed; the command line needs it: pip install "gnsq-like[cli]"',
            file=sys.stderr,
        )
        return 1
    from gnsq_like.cli.app import app

    app(prog_name="gnsq-like")
    return 0
