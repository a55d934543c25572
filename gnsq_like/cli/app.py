"""The click group of ``gnsq-like``.

Each subcommand has an entry in SECTIONS, which are those of ``--help``. Its module is imported when it runs: ``--help``
and ``--version`` load neither gevent nor the daemons.
"""

import contextlib
import importlib
from typing import NamedTuple

import click

from gnsq_like._version import __version__


class Entry(NamedTuple):
    """The module of a subcommand, and its line in ``--help``."""

    target: str  #: "module:object"; the object is a click.Command
    help: str


SECTIONS = {
    "Publish and consume": {
        "pub": Entry("gnsq_like.cli.pub:pub", "Publish messages, or the lines of standard input."),
        "tail": Entry("gnsq_like.cli.tail:tail", "Show the messages of topics as they come."),
        "to-file": Entry("gnsq_like.cli.to_file:to_file", "Write topics into files."),
        "to-http": Entry("gnsq_like.cli.to_http:to_http", "Send a topic to HTTP servers."),
        "to-nsq": Entry("gnsq_like.cli.to_nsq:to_nsq", "Copy topics to other nsqds."),
    },
    "Look": {
        "stat": Entry("gnsq_like.cli.stat:stat", "Show the rates and counts of a channel, again and again."),
        "nodes": Entry("gnsq_like.cli.nodes:nodes", "List the nsqds of a cluster."),
        "lookup": Entry("gnsq_like.cli.nodes:lookup", "Show the nsqds that have a topic, according to nsqlookupds."),
        "ping": Entry("gnsq_like.cli.nodes:ping", "Ask the daemons of a cluster whether they are well."),
    },
    "Change": {
        "topic": Entry("gnsq_like.cli.topics:topic", "List, show, create, delete, empty, pause and unpause topics."),
        "channel": Entry("gnsq_like.cli.topics:channel", "The same for the channels of a topic."),
        "node": Entry("gnsq_like.cli.nodes:node", "Remove a topic from one nsqd."),
        "dlq": Entry("gnsq_like.cli.dlq:dlq", "List, show, replay and drop dead letters."),
    },
    "Run": {
        "run": Entry("gnsq_like.cli.run:run", "Run the Readers of a module in one or several processes."),
        "pipeline": Entry(
            "gnsq_like.cli.pipeline:pipeline", "Write a topic into a table with Spark, or demonstrate it."
        ),
        "demo": Entry("gnsq_like.cli.demo:demo", "Publish and consume on its own daemons; count lost messages."),
    },
    "Daemons": {
        "cluster": Entry("gnsq_like.cli.cluster:cluster", "Run several nsqds and nsqlookupds, and print their counts."),
        "nsqd": Entry("gnsq_like.cli.daemon_commands:nsqd", "Run an nsqd in Python."),
        "nsqlookupd": Entry("gnsq_like.cli.daemon_commands:nsqlookupd", "Run an nsqlookupd in Python."),
        "admin": Entry("gnsq_like.cli.admin:admin", "Run nsqadmin in Python: pages and a JSON API for a cluster."),
        "admin-password": Entry("gnsq_like.cli.admin:admin_password", "Set a user's password in a file for the admin."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """The group of COMMANDS, which are imported by name when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(longest), entry.help) for name, entry in section.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """NSQ on gevent: NSQ's utilities, daemons and admin in Python, and a demonstration."""
    _allow_many_files()


def _allow_many_files() -> None:
    """Raise the limit of file descriptors to the hard limit, as Go does: connections and disk queues need many."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than the limit they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
