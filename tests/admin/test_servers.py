"""The admin in other servers: gunicorn's workers of each kind, patched and forked after it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import raw
from tests.support.daemons import running_nsqd
from tests.support.web import gunicorn

pytestmark = pytest.mark.commands

APP = """
from gnsq_like.admin import AdminOptions, create_app

app = create_app(AdminOptions(nsqd_http_addresses=("{address}",)))
"""


@pytest.mark.parametrize("flags", [["-k", "gthread", "--threads", "4"], ["-k", "sync"], ["-k", "gevent"]], ids=str)
@pytest.mark.parametrize("preload", [False, True])
def test_gunicorn(tmp_path: Path, flags: list[str], preload: bool) -> None:
    with running_nsqd() as nsqd:
        raw.post(nsqd.http_address, "/topic/create?topic=clicks")
        (tmp_path / "shop.py").write_text(APP.format(address=nsqd.http_address))
        whole = [*flags, "-w", "1", "--pythonpath", str(tmp_path), *(["--preload"] if preload else [])]
        with gunicorn(tmp_path, *whole, app="shop:app") as server:
            address = f"127.0.0.1:{server.port}"
            assert raw.get(address, "/api/topics").json() == {"topics": ["clicks"], "message": ""}
            assert b'href="/topics/clicks"' in raw.get(address, "/topics").body
            assert server.end() == 0
