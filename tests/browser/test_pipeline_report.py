"""The pipeline's report in a browser: it fits a telephone and a desk, and asks for nothing beyond itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.pipeline.report import write_report
from tests.support.pipeline_tables import batch, written

pytestmark = pytest.mark.browser


@pytest.fixture(params=[1200, 400])
def width(request: pytest.FixtureRequest, driver: Any) -> Iterator[int]:
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": request.param < 500},
    )
    yield request.param
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_report_fits_its_page(browser: Any, width: int, tmp_path: Path) -> None:
    batches = [batch(number, messages=10**6 + number, rejected=5) for number in range(12)]
    pipeline = written(tmp_path, *batches, batch(9000, latency=timedelta(hours=3).total_seconds()))
    browser.get(write_report(pipeline, tmp_path / "report.html").as_uri())
    # Without the bar at the page's side.
    inside = browser.execute_script("return document.documentElement.clientWidth")
    assert width - 30 < inside <= width
    assert browser.execute_script("return document.documentElement.scrollWidth") == inside
    assert len(browser.find_elements("css selector", "svg")) == 3
    for box in browser.find_elements("css selector", "dl div"):
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box), box.text
    # Anything wider scrolls within its own box.
    for box in browser.find_elements("css selector", "section, dl"):
        assert browser.execute_script("return arguments[0].getBoundingClientRect().right", box) <= inside
