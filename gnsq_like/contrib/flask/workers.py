"""The readers of a Flask application in the processes of a supervisor."""

from __future__ import annotations

from flask.cli import NoAppException, ScriptInfo

from gnsq_like import Reader
from gnsq_like.workers.plan import CannotLoad

#: For ``Plan.loader``.
LOADER = f"{__name__}:load"


def load(app: str, *names: str) -> list[Reader]:
    """Load an application as the command ``flask`` does, and return its readers of these names, or all.

    :param app: as for ``flask --app``; empty to look for it as Flask does
    :raises CannotLoad: when Flask cannot load it
    """
    try:
        found = ScriptInfo(app_import_path=app or None).load_app()
    except NoAppException as exc:
        raise CannotLoad(" ".join(str(exc).split()[-40:])) from exc
    state = found.extensions.get("nsq")
    if state is None:
        raise CannotLoad(f"{found} has no NSQ: call nsq.init_app(app)")
    readers: list[Reader] = state.nsq.make_readers(names, found)
    return readers
