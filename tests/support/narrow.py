"""A page in a browser as narrow as a telephone."""

from __future__ import annotations

from typing import Any

#: Pixels, of the page and not of the window.
WIDTH, HEIGHT = 400, 800


def narrow(browser: Any) -> None:
    """Show the page with this width, as a telephone does."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def overflows(browser: Any) -> bool:
    """Whether the page is wider than the screen."""
    return bool(browser.execute_script("return document.documentElement.scrollWidth > innerWidth"))


def lines(browser: Any, rows: str) -> list[int]:
    """The lines of text in each row that this selector finds."""
    script = """
        return [...document.querySelectorAll(arguments[0])].map((row) => {
            const range = document.createRange();
            range.selectNodeContents(row);
            const tops = [...range.getClientRects()].filter((box) => box.width).map((box) => box.top + box.height / 2);
            tops.sort((one, other) => one - other);
            return tops.filter((top, at) => at === 0 || top - tops[at - 1] > 8).length;
        });
    """
    return [int(each) for each in browser.execute_script(script, rows)]
