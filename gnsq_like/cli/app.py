"""The click group of ``gnsq-like``.

Each subcommand has an entry in COMMANDS. Its module is imported when it runs: ``--help`` and ``--version`` load
neither gevent nor the daemons.
"""

import contextlib
import importlib
from typing import Any, NamedTuple

import click

from gnsq_like._version import __version__


class Entry(NamedTuple):
    """Where to find a subcommand, and its line in ``--help``."""

    target: str  #: "module:object"; the object is a click.Command
    help: str


COMMANDS = {
    "run": Entry("gnsq_like.cli.run:run", "Run the Readers of a module in one or several processes."),
    "demo": Entry(
        "gnsq_like.cli.demo:demo",
        "Publish and consume on its own daemons; count lost messages.",
    ),
    "cluster": Entry("gnsq_like.cli.cluster:cluster", "Run several nsqds and nsqlookupds, and show their counts."),
    "pub": Entry("gnsq_like.cli.pub:pub", "Publish lines of standard input, or of files."),
    "tail": Entry("gnsq_like.cli.tail:tail", "Show the messages of topics as they come."),
    "to-file": Entry("gnsq_like.cli.to_file:to_file", "Write topics into files."),
    "to-http": Entry("gnsq_like.cli.to_http:to_http", "Send a topic to HTTP servers."),
    "to-nsq": Entry("gnsq_like.cli.to_nsq:to_nsq", "Copy topics to other nsqds."),
    "pubsub": Entry("gnsq_like.cli.pubsub:pubsub", "Serve topics over HTTP, as lines or server-sent events."),
    "stat": Entry("gnsq_like.cli.stat:stat", "Show the rates and counts of a channel, again and again."),
    "top": Entry("gnsq_like.cli.top:top", "Show a cluster on the whole screen, and keep it fresh."),
    "topic": Entry("gnsq_like.cli.topic:topic", "List, show, create, delete, empty, pause and unpause topics."),
    "channel": Entry("gnsq_like.cli.channel:channel", "The same for the channels of a topic."),
    "nodes": Entry("gnsq_like.cli.nodes:nodes", "List the nsqds of a cluster."),
    "node": Entry("gnsq_like.cli.nodes:node", "Hide an nsqd from a topic's consumers."),
    "lookup": Entry("gnsq_like.cli.lookup:lookup", "Show the nsqds that have a topic, according to nsqlookupds."),
    "ping": Entry("gnsq_like.cli.ping:ping", "Ask the daemons of a cluster whether they are well."),
    "dlq": Entry("gnsq_like.cli.dlq:dlq", "List, show, replay and drop dead letters."),
    "bench": Entry("gnsq_like.cli.bench:bench", "Measure how fast a cluster publishes and consumes."),
    "pipeline": Entry("gnsq_like.cli.pipeline:pipeline", "Write a topic into a table with Spark, or demonstrate it."),
    "nsqd": Entry("gnsq_like.cli.daemons:nsqd", "Run an nsqd in Python."),
    "nsqlookupd": Entry("gnsq_like.cli.daemons:nsqlookupd", "Run an nsqlookupd in Python."),
    "admin": Entry("gnsq_like.cli.admin:admin", "Run nsqadmin in Python: pages and a JSON API for a cluster."),
    "admin-password": Entry("gnsq_like.cli.admin:admin_password", "Set a user's password in a file for the admin."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported by name, from a table, when they run."""

    def __init__(self, *args: Any, entries: dict[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
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
