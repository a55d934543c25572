"""The commands that pages show beside their buttons are commands of ours."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from gnsq_like.cli.app import app
from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import client_of, site

pytestmark = pytest.mark.commands


def commands_of(page: str) -> list[str]:
    """The command lines of a page."""
    shown = re.findall(r'<code class="shell"[^>]*>(.*?)</code>', page)
    return [html.unescape(re.sub(r"<span[^>]*>.*?</span>", "", each)) for each in shown]


def parse(line: str) -> tuple[list[str], click.Context]:
    """Read a command line as the command does, without running it: its names, and what was read."""
    program, *words = shlex.split(line)
    assert program == "gnsq-like"
    command: click.Command = app
    context, names = None, []
    while isinstance(command, click.Group):
        context = click.Context(command, context, info_name=words[0])
        names.append(words.pop(0))
        found = command.get_command(context, names[-1])
        assert found is not None, f"there is no command {' '.join(names)}"
        command = found
    return names, command.make_context(names[-1], words, parent=context)


@pytest.fixture
def pages(ours: Daemons) -> Iterator[dict[str, str]]:
    """All pages that show commands, by path."""
    first = ours.nsqd_addresses[0]
    raw.post(first, "/topic/create?topic=clicks")
    raw.post(first, "/channel/create?topic=clicks&channel=archive%23ephemeral")
    ours.wait_until_known("clicks", 1, channels=1)
    for lookupd in ours.lookupd_addresses:
        raw.post(lookupd, "/channel/create?topic=planned&channel=some")
    paths = ["/topics/clicks", "/topics/clicks/archive%23ephemeral", f"/nodes/{first}", "/lookup"]
    paths.append("/topics/clicks/-/letters")
    with site(lookupd_http_addresses=ours.lookupd_addresses) as made:
        client = client_of(made)
        found = {path: client.get(path) for path in paths}
        assert {answer.status_code for answer in found.values()} == {200}
        yield {path: answer.text for path, answer in found.items()}


def test_every_command_of_a_page_is_read_by_the_command_line(pages: dict[str, str], ours: Daemons) -> None:
    seen = set()
    for path, page in pages.items():
        lines = commands_of(page)
        assert lines, f"{path} shows no command"
        for line in lines:
            names, context = parse(line)
            seen.add(" ".join(names))
            assert set(context.params["lookupd_http_addresses"]) <= set(ours.lookupd_addresses), line
            assert context.params["lookupd_http_addresses"], line
            given = [context.params[name] for name in ("topic", "channel") if context.params.get(name)]
            assert set(given) <= {"clicks", "archive#ephemeral", "planned", "some", "TOPIC", "CHANNEL"}
    assert seen == {
        *("topic pause", "topic unpause", "topic empty", "topic delete", "node tombstone"),
        *("channel pause", "channel unpause", "channel empty", "channel delete", "channel create"),
        *("dlq list", "dlq replay", "dlq drop"),
    }
