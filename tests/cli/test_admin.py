"""``gnsq-like admin`` as a process: its flags, its config file, its end; and ``admin-password``."""

from __future__ import annotations

import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsq_like.admin.web.passwords import read_passwords
from tests.support import raw
from tests.support.commands import gnsq_like
from tests.support.daemons import running_nsqlookupd
from tests.support.tools import invoke
from tests.support.web import Server, running

pytestmark = pytest.mark.commands


@contextmanager
def admin(directory: Path, *flags: str) -> Iterator[Server]:
    command = ["-m", "gnsq_like", "admin", "--http-address=127.0.0.1:0", *flags]
    with running(command, directory, r"HTTP: listening on 127\.0\.0\.1:(\d+)") as server:
        yield server


def test_nsqadmins_flags_and_config_file(tmp_path: Path) -> None:
    config = tmp_path / "nsqadmin.cfg"
    with running_nsqlookupd() as lookupd:
        config.write_text(
            f"""
            log_level = "warn"
            base_path = "/from-file"
            nsqlookupd_http_addresses = ["{lookupd.http_address}"]
            admin_users = ["ada", "bob"]
            http_client_request_timeout = 60000
            read_only = true
            dev_static_dir = "/x"
            [clusters]
            east = ["nsqd:127.0.0.1:9"]
            """
        )
        flags = ["-config", str(config), "-base-path", "/nsq", "-verbose=true", "--log-level=info", "--no-peek"]
        with admin(tmp_path, *flags) as server:
            address = f"127.0.0.1:{server.port}"
            answers = {
                name: raw.get(address, f"/nsq/config/{name}").body.decode()
                for name in (
                    "log_level",
                    "base_path",
                    "admin_users",
                    "http_client_request_timeout",
                    "read_only",
                    "peek",
                )
            }
            assert answers == {
                **{"log_level": "2", "base_path": "/nsq", "admin_users": '["ada","bob"]'},
                **{"http_client_request_timeout": "60000000000", "read_only": "true", "peek": "false"},
            }
            assert raw.get(address, "/nsq/api/topics").json() == {"topics": None, "message": ""}
            assert raw.get(address, "/nsq/clusters/east/api/topics").status == 502
            assert "[nsqadmin]" in server.log
            assert server.end(signal.SIGTERM) == 0


def test_an_address_in_use(tmp_path: Path) -> None:
    with admin(tmp_path, "--nsqd-http-address=127.0.0.1:9") as server:
        done = gnsq_like("admin", "--nsqd-http-address=127.0.0.1:9", f"--http-address=127.0.0.1:{server.port}")
    assert (done.returncode, "cannot start" in done.stderr) == (1, True)


def test_passwords_are_set_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "passwords"

    def set_password(user: str, password: str) -> int:
        return invoke("admin-password", str(path), user, "--password", password).exit_code

    assert set_password("ada", "one") == 0
    assert set_password("bob", "two") == 0
    before = read_passwords(str(path))
    assert {*before} == {"ada", "bob"}
    assert "one" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set_password("ada", "three") == 0
    assert read_passwords(str(path))["ada"] != before["ada"]
    assert read_passwords(str(path))["bob"] == before["bob"]
    assert set_password("ada", "") == 0
    assert {*read_passwords(str(path))} == {"bob"}
    assert set_password("a:b", "x") == 1


@pytest.mark.parametrize("command", [["cluster"], ["demo", "--messages=100000000"]])
def test_admin_beside_other_commands(tmp_path: Path, command: list[str]) -> None:
    whole = ["-u", "-m", "gnsq_like", *command, "--admin=0"]
    with running(whole, tmp_path, r"nsqadmin: http://127\.0\.0\.1:(\d+)/") as server:
        nodes = raw.get(f"127.0.0.1:{server.port}", "/api/nodes").json()["nodes"]
        assert len(nodes) == 2
        assert server.end(signal.SIGTERM) in (0, 130)


def test_the_port_of_an_admin_beside_may_be_taken(tmp_path: Path) -> None:
    with admin(tmp_path, "--nsqd-http-address=127.0.0.1:9") as server:
        done = gnsq_like("cluster", "--nsqds=1", f"--admin={server.port}")
    assert (done.returncode, "--admin: " in done.stderr) == (2, True)
