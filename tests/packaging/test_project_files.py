"""What is beside the code for a release: workflows, templates, supported versions, the check before a tag."""

from __future__ import annotations

import os
import re
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import DOCS, page, section

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
[SUPPORTED] = [set(line.split()) for line in re.findall(r"^SUPPORTED = (.*)", MAKEFILE, re.MULTILINE)]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
CLASSIFIERS = SETUP["metadata"]["classifiers"].splitlines()


def jobs(workflow: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_and_nothing_else(workflow: Path) -> None:
    lines = []
    for job in jobs(workflow).values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", ["none"])
        lines += [
            re.sub(r"\$\{\{ matrix.target \}\}", target, step["run"])
            for step in job["steps"]
            if "run" in step
            for target in targets
        ]
    assert lines
    for line in lines:
        command, target, *_ = line.split()
        assert command == "make"
        assert target in TARGETS, line


def test_what_is_published_was_built_and_tested_and_is_attested() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    publish = release["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["steps"][-1]["with"]["attestations"] is True
    assert [step["run"].split()[1] for step in release["build"]["steps"] if "run" in step] == [
        "release-check",
        "dist",
        "test-package",
    ]


def test_the_supported_versions_of_python_are_the_same_everywhere() -> None:
    classified = {line.split(" :: ")[-1] for line in CLASSIFIERS if re.search(r"Python :: 3\.\d+$", line)}
    tested = set(jobs(ROOT / ".github/workflows/ci.yml")["test"]["strategy"]["matrix"]["python"])
    row = re.search(r"^Python +3\.(\d+) to 3\.(\d+) ", page("stability.rst"), re.MULTILINE)
    assert row
    named = {f"3.{minor}" for minor in range(int(row[1]), int(row[2]) + 1)}
    assert named == classified == tested == SUPPORTED


def test_what_is_experimental_says_so_on_its_page() -> None:
    named = set(re.findall(r"``docs/(\S+)``", section(page("stability.rst"), "Experimental")))
    marked = {
        path.name for path in DOCS.glob("*.rst") if re.search(r"\bexperimental\s+\(``docs/stab", path.read_text())
    }
    assert named == marked


def test_the_check_before_a_tag_names_each_thing_that_is_not_ready(tmp_path: Path) -> None:
    def check(tag: str) -> tuple[int, str]:
        command = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), "release-check", f"TAG={tag}"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    (tmp_path / "gnsq_like").mkdir()
    (tmp_path / "gnsq_like/_version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGES.rst").write_text("1.2.3 (unreleased)\n")
    (tmp_path / "setup.cfg").write_text("[metadata]\n")
    (tmp_path / "README.rst").write_text('pip install ".[cli]"\n')
    status, printed = check("v1.2.4")
    assert status != 0
    assert printed.splitlines() == [
        "TAG=v1.2.4, but _version.py has 1.2.3",
        "CHANGES.rst has no heading '1.2.3 (YYYY-MM-DD)'",
        "setup.cfg has no project_urls",
        'README.rst:pip install ".[cli]"',
    ]
    (tmp_path / "README.rst").write_text("")
    (tmp_path / "CHANGES.rst").write_text("1.2.3 (2027-01-31)\n")
    (tmp_path / "setup.cfg").write_text("[metadata]\nproject_urls =\n")
    assert check("v1.2.3") == (0, "")


def test_nothing_says_to_install_a_name_that_anybody_may_register() -> None:
    """Until the release there is one install line, that for a checkout; everything else names an extra."""
    released = {"releasing.rst", "spark.rst", "pipeline.rst"}
    for folder in ("docs", "gnsq_like", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".rst", ".html"} and path.name not in released and "_build" not in path.parts:
                assert not re.search(r"""pip install ["']?gnsq""", path.read_text()), path
    for path in (ROOT / "README.rst", DOCS / "install.rst"):
        assert path.read_text().count('pip install ".[cli]"') == 1


def test_the_page_about_installing_lists_all_extras_for_users() -> None:
    known = set(SETUP["options.extras_require"]) - {"test", "docs", "release", "fuzz", "mutation"}
    assert set(re.findall(r"\[(\w+)\]", page("install.rst"))) == known
