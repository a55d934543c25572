"""What the fixture ``browser`` looks at after each test is really what goes wrong in a page."""

import pytest

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("script", ["console.error('meant')", "nothing.there", "fetch('http://127.0.0.1:1/')"])
def test_the_console_tells_of_errors(driver, script):
    driver.get(f"data:text/html,<title>page</title><script>{script}</script>")
    assert driver.title == "page"
    entries = []
    while not entries:
        entries = driver.get_log("browser")
    assert entries[0]["level"] == "SEVERE"
