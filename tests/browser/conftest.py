"""A headless Chromium, driven like a person would; tests are skipped where it is not installed."""

import os
import shutil
from collections.abc import Generator

import pytest

from tests.support.web import ROOT, running

#: A bare browser: its own requests would fail in a closed network, and be logged as errors.
FLAGS = [
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,800",
]


@pytest.fixture(scope="session")
def driver():
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("no chromium and chromedriver on PATH (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the page."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("driver")
    if report.when == "call" and report.failed and driver is not None:
        from tests.support.browsing import description

        report.sections.append(("The page", description(driver)))
    return report


@pytest.fixture
def browser(driver):
    """The browser; a test fails if it leaves anything in the console, such as an error or a failed request."""
    driver.get("about:blank")
    driver.get_log("browser")
    yield driver
    assert driver.get_log("browser") == []


@pytest.fixture
def example(tmp_path):
    """A function that starts an application of examples/, and returns a context manager for its server."""

    def start(name, **environment):
        command = [str(ROOT / "examples" / name / "run.py"), "0"]
        return running(command, tmp_path, r"http://127\.0\.0\.1:(\d+)", PYTHONUNBUFFERED="1", **environment)

    return start
