"""The audit log's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnsq_like.admin.audit import AuditLog


def test_it_is_not_written_into_what_others_put_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "audit").symlink_to(tmp_path / "elsewhere")
    log = AuditLog(str(tmp_path / "audit"))
    log.add({"action": "pause_topic", "timestamp": 1})
    assert len((tmp_path / "elsewhere").read_bytes().splitlines()) == 1  # only we may write there
    tmp_path.chmod(0o777)
    log.add({"action": "unpause_topic", "timestamp": 2})
    assert len((tmp_path / "elsewhere").read_bytes().splitlines()) == 1
    assert "unpause_topic" in caplog.text
