"""The names of files, and options that do not go together."""

import os
import platform
import time
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.tools.to_file.plan import FilePlan, format_time, is_url, with_revision

#: 2026-01-02 15:04:05 in the time zone of the machine.
NOW = time.mktime((2026, 1, 2, 15, 4, 5, 0, 0, -1))
HOST = platform.node()
SHORT = HOST.split(".")[0]


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("%Y-%m-%d_%H", "2026-01-02_15"),
        ("%y%b%B%a%A", "26JanJanuaryFriFriday"),
        ("%I%p %M:%S", "03PM 04:05"),
        ("%%d %q 2006 %", "%d %q 2006 %"),
    ],
)
def test_times(layout: str, text: str) -> None:
    assert format_time(layout, NOW) == text


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, f"t.{SHORT}.2026-01-02_15.log"),
        ({"compression": "gzip"}, f"t.{SHORT}-000007.2026-01-02_15.log.gz"),
        ({"compression": "zstd", "filename_format": "x<REV>.zst"}, "x-000007.zst"),
        ({"rotate_size": 5}, f"t.{SHORT}-000007.2026-01-02_15.log"),
        ({"work_dir": "/w"}, f"t.{SHORT}-000007.2026-01-02_15.log"),
        ({"filename_format": "<TOPIC>/<PID>/<HOST><REV>"}, f"t/PID/{SHORT}"),
        ({"filename_format": "<HOST>", "host_identifier": "a-<HOSTNAME>-<SHORT_HOST>"}, f"a-{HOST}-{SHORT}"),
    ],
)
def test_names(options: dict[str, Any], name: str) -> None:
    plan = FilePlan(**options)
    assert with_revision(plan.dated(plan.template("t"), NOW), 7) == name.replace("PID", str(os.getpid()))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"filename_format": "x", "rotate_size": 5}, "filename_format"),
        ({"filename_format": "x", "compression": "zstd"}, "filename_format"),
        ({"output_dir": "s3://bucket"}, "work_dir"),
        ({"work_dir": "s3://bucket"}, "work_dir"),
        ({"compression": "bzip2"}, "compression"),
        ({"rotate_interval": -1.0}, "rotate_interval"),
        ({"sync_interval": 0.0}, "sync_interval"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        FilePlan(**options)
    assert caught.value.option == option


def test_work_dir_and_output_dir_may_be_the_same() -> None:
    assert not FilePlan(output_dir="/a/b", work_dir="/a/b/").moves
    assert FilePlan(output_dir="/a/b", work_dir="/a").moves
    assert is_url("s3://x")
    assert not is_url("/x")
