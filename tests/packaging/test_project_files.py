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
    (tmp_path / "README.rst").write_text("Not on PyPI yet: do that.\n\n")
    status, printed = check("v1.2.4")
    assert status != 0
    assert printed.splitlines() == [
        "TAG=v1.2.4, but _version.py has 1.2.3",
        "CHANGES.rst has no heading '1.2.3 (YYYY-MM-DD)'",
        "setup.cfg has no project_urls",
        "README.rst:Not on PyPI yet",
    ]
    (tmp_path / "README.rst").write_text("")
    (tmp_path / "CHANGES.rst").write_text("1.2.3 (2027-01-31)\n")
    (tmp_path / "setup.cfg").write_text("[metadata]\nproject_urls =\n")
    assert check("v1.2.3") == (0, "")


def test_install_lines_name_what_is_on_an_index_and_one_command_ends_the_time_before(tmp_path: Path) -> None:
    paths = [*ROOT.glob("*.rst"), *DOCS.rglob("*.rst"), *(ROOT / "examples").rglob("*.rst")]
    for path in paths:
        text = re.sub(r"^Not on PyPI yet.*|.*--editable.*", "", path.read_text(), flags=re.MULTILINE)
        assert not re.search(r"""pip install ["']?\.""", text), path
    [command] = re.findall(r"^ +(sed -i .*PyPI.*)", page("releasing.rst"), re.MULTILINE)
    files = re.findall(r"\S+\.(?:rst|py)", command)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    before, after = ([(root / name).read_text() for name in files] for root in (ROOT, tmp_path))
    assert len({text.count("Not on PyPI yet") for text in before}) == 1, "all say so, or none"
    for old, new in zip(before, after, strict=True):
        assert "PyPI yet" not in new
        assert len(old.splitlines()) - len(new.splitlines()) == 2 * old.count("Not on PyPI yet")
