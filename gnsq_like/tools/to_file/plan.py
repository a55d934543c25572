"""The options of to-file, and the names of files that follow from them."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.files import inside
from gnsq_like.tools.to_file.members import COMPRESSIONS

REV = "<REV>"
DATETIME = "<DATETIME>"
#: The directives of a datetime format; other text is kept, as in NSQ's own.
_DIRECTIVES = frozenset("BbmAadHIMSYypZz")


def is_url(path: str) -> bool:
    """Whether this is the URL of a store, and not a local directory."""
    return "://" in path


@dataclass(frozen=True)
class FilePlan:
    """How files are named, compressed and rotated. Defaults are those of NSQ's nsq_to_file.

    :raises InvalidOption: if an option is invalid, or excludes another
    """

    #: A directory, or the URL of a store that fsspec knows, such as s3://bucket/prefix.
    output_dir: str = "/tmp"
    #: Directory of files in progress; empty for output_dir.
    work_dir: str = ""
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    datetime_format: str = "%Y-%m-%d_%H"
    #: In the place of the short host name; may have <SHORT_HOST> and <HOSTNAME> in it.
    host_identifier: str = ""
    #: A name of COMPRESSIONS; empty for none.
    compression: str = ""
    #: 0 for the usual one.
    compression_level: int = 0
    #: Whether a file is opened only when there is a message for it.
    skip_empty_files: bool = False
    #: Bytes after which a file is closed; 0 for no limit. Uncompressed, as they are written.
    rotate_size: int = 0
    #: Seconds after which a file is closed; 0 for no limit.
    rotate_interval: float = 0.0
    #: Seconds after which messages are synced at the latest.
    sync_interval: float = 30.0

    def __post_init__(self) -> None:
        for name in ("rotate_size", "rotate_interval"):
            if getattr(self, name) < 0:
                raise InvalidOption(name, getattr(self, name), "it must be at least 0")
        if self.sync_interval <= 0:
            raise InvalidOption("sync_interval", self.sync_interval, "it must be above 0")
        if self.compression and self.compression not in COMPRESSIONS:
            raise InvalidOption("compression", self.compression, f"it must be {' or '.join(COMPRESSIONS)}")
        if self.has_revisions and REV not in self.filename_format:
            reason = f"{REV} is missing, which compression, rotation, a work dir and stores need"
            raise InvalidOption("filename_format", self.filename_format, reason)
        if not {".", ".."}.isdisjoint(self.template("topic").split("/")):
            raise InvalidOption("filename_format", self.filename_format, "it must not leave the directory")
        if is_url(self.output_dir) and not self.work_dir:
            raise InvalidOption("work_dir", "", f"files for {self.output_dir} need one until they are uploaded")
        if is_url(self.work_dir):
            raise InvalidOption("work_dir", self.work_dir, "it must be a local directory")

    @property
    def directory(self) -> str:
        """The directory of files in progress."""
        return self.work_dir or self.output_dir

    @property
    def moves(self) -> bool:
        """Whether closed files go somewhere else."""
        return os.path.normpath(self.directory) != os.path.normpath(self.output_dir)

    @property
    def has_revisions(self) -> bool:
        """Whether names have numbers, so that a file need not be appended to."""
        return bool(self.compression or self.rotate_size or self.rotate_interval or self.moves)

    @property
    def is_exclusive(self) -> bool:
        """Whether a file must be new; otherwise an existing one is appended to."""
        return bool(self.compression or self.rotate_interval)

    def template(self, topic: str) -> str:
        """The name of a topic's files, in which <REV> and <DATETIME> are left."""
        host = platform.node()
        short = host.split(".")[0]
        identifier = (self.host_identifier or short).replace("<SHORT_HOST>", short).replace("<HOSTNAME>", host)
        name = os.path.normpath(self.filename_format if self.has_revisions else self.filename_format.replace(REV, ""))
        name = name.replace("<TOPIC>", topic).replace("<HOST>", identifier).replace("<PID>", str(os.getpid()))
        suffix = COMPRESSIONS[self.compression].suffix if self.compression else ""
        return name if name.endswith(suffix) else name + suffix

    def dated(self, template: str, now: float) -> str:
        """The name at a time, with <REV> left in it; relative to the directory, and never outside it."""
        name = template.replace(DATETIME, format_time(self.datetime_format, now))
        return "/".join(inside(part) for part in name.split("/") if part)


def format_time(layout: str, now: float) -> str:
    """Local time by the directives that NSQ's nsq_to_file knows."""
    local = time.localtime(now)

    def expanded(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "%":
            return "%"
        return time.strftime(f"%{letter}", local) if letter in _DIRECTIVES else match[0]

    return re.sub("%(.)", expanded, layout, flags=re.DOTALL)


def with_revision(name: str, revision: int) -> str:
    """A name with its number, if it has one."""
    return name.replace(REV, f"-{revision:06d}")
