"""A run's live page in Chromium: it fits a telephone and a desk, keeps itself fresh, and asks for nothing else.

With GNSQ_LIKE_SCREENSHOTS=directory, pages are stored there at 1200 and 400 px, light and dark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.support import browsing
from tests.support.pipeline_tables import Run, running_status

pytestmark = pytest.mark.browser

SCREENSHOTS = os.environ.get("GNSQ_LIKE_SCREENSHOTS", "")
FIRST, SECOND = "nsqd-1.example.com:4150", "nsqd-2.with-a-rather-long-name.example.com:4150"


@pytest.fixture
def run() -> Run:
    run = Run(depth=100_000)
    for number in range(12):
        run.wrote(number, messages=25_000 + 999 * (number % 4), rejected=40 * (number % 3), latency=0.4 + number % 5)
        for second in range(0, 10, 2):
            run.look(10 * number + second, {FIRST: 4_000 * ((number + second) % 7), SECOND: 1_234})
    return run


@pytest.fixture
def address(run: Run) -> Iterator[str]:
    with running_status(run) as address:
        yield address


def look(browser: Any, name: str) -> None:
    for width in (1200, 400):
        for scheme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name
            for box in browser.find_elements("css selector", ".tiles > div, .facts > div"):
                assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)
            if SCREENSHOTS:
                browser.save_screenshot(f"{SCREENSHOTS}/live-{name}-{width}-{scheme}.png")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def says(browser: Any, text: str) -> None:
    browsing.until(browser, lambda: text in browser.find_element("css selector", "body").text)


def test_the_page_follows_the_run(browser: Any, run: Run, address: str) -> None:
    browser.get(f"http://{address}/")
    says(browser, FIRST)
    look(browser, "fine")
    run.look(200, {FIRST: 150_000, SECOND: None}, times=2)
    says(browser, "150,000 messages wait, more than 100,000")
    says(browser, "away since")
    look(browser, "trouble")
    for path in ("metrics", "healthz", "status"):
        assert browser.find_element("css selector", f'footer a[href="/{path}"]')
    browser.get("about:blank")
