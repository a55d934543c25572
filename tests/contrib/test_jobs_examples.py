"""examples/flask_jobs and examples/django_jobs, each started by its one command."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import gevent
import pytest

from gnsq_like import Reader
from gnsq_like.deadletter import open_envelope
from tests.support.daemons import wait_for
from tests.support.web import ROOT, get, running


@pytest.mark.servers
@pytest.mark.parametrize("site", ["flask_jobs", "django_jobs"])
def test_a_text_is_counted_and_an_empty_one_becomes_a_dead_letter(site: str, tmp_path: Path) -> None:
    command = [str(ROOT / "examples" / site / "run.py"), "0"]
    environment = {"TEXTS_DATABASE": str(tmp_path / "texts.sqlite3"), "PYTHONUNBUFFERED": "1"}
    with running(command, tmp_path, r"http://127\.0\.0\.1:([1-9]\d*)", **environment) as server:
        address = f"http://127.0.0.1:{server.port}"
        for text in ("to be or not to be", ""):
            body = f"text={text.replace(' ', '+')}".encode()
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            request = urllib.request.Request(f"{address}/", body, kind)
            assert gevent.get_hub().threadpool.apply(urllib.request.urlopen, (request,)).status == 202

        def texts() -> list[object]:
            found: list[object] = json.loads(get(server.port, "/")[1])
            return found

        wait_for(lambda: texts() == [{"text": "to be or not to be", "words": 6}, {"text": "", "words": None}])
        nsqd = re.search(r"nsqd: (\S+),", server.log)
        assert nsqd
        with Reader("dramatiq.default.dead", "c", nsqd_tcp_addresses=nsqd[1]) as reader:
            message = reader.get(60)
            assert message is not None
            assert open_envelope(message.body).reason == "ValueError: an empty text"
            message.finish()
        gevent.idle()
        assert server.end() == 0
