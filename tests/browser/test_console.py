"""Errors in a page really appear in the log that the fixture ``browser`` checks after each test."""

import pytest

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("script", ["console.error('meant')", "nothing.there", "fetch('http://127.0.0.1:1/')"])
def test_errors_are_in_the_log(driver, script):
    driver.get(f"data:text/html,<title>page</title><script>{script}</script>")
    assert driver.title == "page"
    entries: list[dict[str, object]] = []
    while not entries:
        entries = driver.get_log("browser")
    assert entries[0]["level"] == "SEVERE"
