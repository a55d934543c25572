"""All is in setup.cfg, but for this: builds without what an earlier one has left, an sdist whose bytes depend on its
files and SOURCE_DATE_EPOCH alone, and the README without its pictures, for an index: there, their relative paths lead
nowhere."""

import gzip
import os
import re
import shutil
import tarfile
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


class FreshBuild(build_py):
    """Without the modules that a build of an earlier version has left in ``build/``."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class ReproducibleSdist(sdist):
    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())

        def without_the_machine(entry):
            entry.mtime, entry.mode = epoch, 0o755 if entry.mode & 0o100 else 0o644
            entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, "", ""
            return entry

        path = f"{base_name}.tar.gz"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=without_the_machine)
        return path


readme = Path("README.rst").read_text(encoding="utf-8")
setup(
    cmdclass={"build_py": FreshBuild, "sdist": ReproducibleSdist},
    long_description=re.sub(r"^\.\. image::.*\n(?: .*\n)*\n", "", readme, flags=re.MULTILINE),
)
