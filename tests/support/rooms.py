"""Who may import what: the table of docs/internals/architecture.rst, for tests/test_layering.py."""

from __future__ import annotations

from dataclasses import dataclass

#: `from gnsq_like import Reader` imports this; it stands for all public names.
FACADE = "(public names)"

PURE = {"gevent", "socket", "ssl", "time", "random", "logging", "requests", "urllib3"}
#: What every room may know.
LEAVES = {"_lazy", "_version", "errors", "addresses", "durations", "durable_file", "quantiles"}
#: What stands outside the client: no room of the client knows these.
OUTER = {FACADE, "server", "testing", "admin", "cli", "contrib", "spark", "tools", "__main__"}
PUBLIC = {FACADE, *LEAVES}


@dataclass(frozen=True)
class Room:
    """What the modules of a room may import, by dotted name below gnsq_like or by other packages' names."""

    never: frozenset[str] = frozenset()
    never_others: frozenset[str] = frozenset()
    #: Where given: the only modules of ours that may be imported, beside the room's own.
    only: frozenset[str] | None = None


def room(*never: str, others: set[str] | None = None, only: set[str] | None = None) -> Room:
    return Room(frozenset(never), frozenset(others or ()), None if only is None else frozenset(only))


ROOMS = {
    FACADE: Room(),
    "_version": room(only=set(), others=PURE),
    "_lazy": room(only=set(), others=PURE),
    "errors": room(only={"_version"}, others=PURE),
    "addresses": room(only={"errors"}, others={"gevent", "socket"}),
    "durations": room(only={"errors"}, others=PURE),
    "durable_file": room(only=set(), others=PURE),
    "quantiles": room(only=set(), others=PURE),
    "wire": room(only=LEAVES, others=PURE),
    "policy": room(only=set(), others=PURE),
    "runtime": room(only={"errors"}),
    "options": room(only=LEAVES | {"wire"}, others={"gevent"}),
    "transport": room(only=LEAVES | {"runtime", "options"}),
    "http": room(only=LEAVES | {"wire", "runtime", "options"}),
    "connection": room("reader", "producer", "http", "policy", "discovery", *OUTER),
    "discovery": room("reader", "producer", "connection", *OUTER),
    "reader": room("producer", "http.nsqd", *OUTER),
    "producer": room("reader", "policy.rdy", *OUTER),
    "deadletter": room("producer", *OUTER),
    "deduplicate": room("producer", *OUTER),
    "server": room(only=LEAVES | {"wire", "runtime", "transport", "http"}),
    "testing": room("admin", "cli", "contrib", "spark", "tools", "__main__"),
    # runtime: upstreams are asked in a thread of its own. server: its HTTP server, and JSON as Go writes it.
    # tools.held_letters: dead letters are held alike.
    "admin": room(only=PUBLIC | {"wire.names", "runtime", "http", "server", "deadletter", "tools.held_letters"}),
    # The work of the command line's tools; cli reads their arguments and shows their screens.
    "tools": room("server", "testing", "admin", "cli", "contrib", "spark", "__main__", others={"click", "rich"}),
    # The one HTTP server of this package.
    "tools.pubsub": room("testing", "admin", "cli", "contrib", "spark", "__main__", others={"click", "rich"}),
    # Below tools and admin.
    "tools.held_letters": room(only=PUBLIC | {"deadletter"}),
    # options: each option of the client is a flag, by its type.
    "cli": room(only=PUBLIC | {"options", "server", "http", "admin", "spark", "tools", "contrib.workers"}),
    # options: settings are read by each option's type and bounds, which stand there once. The other two: test modes.
    "contrib": room(only=PUBLIC | {"options", "server", "testing"}),
    # runtime: one timer for the limits of all handlers, and a native thread beside a hub that may be blocked.
    "contrib.workers": room(
        only=PUBLIC
        | {"runtime", "contrib.health", "contrib.prometheus", "contrib.shared.worker_files"}
        | {"server.shared.http_connections"},
        others={"rich"},
    ),
    # Below the workers.
    "contrib.health": room(only=PUBLIC),
    "contrib.prometheus": room(only=PUBLIC | {"contrib.shared"}),
    # options: those of its Connections; wire.names: a topic's name is checked before Spark starts a query.
    # deadletter: what a pipeline rejects has the envelope that all dead letters have.
    "spark": room(only=PUBLIC | {"options", "wire.names", "deadletter"}),
    # A server in a thread of its own, and webhooks: what the admin has of them, too.
    "spark.watch": room(only=PUBLIC | {"runtime", "http", "server", "spark"}),
    # Below the source, which stages its messages there.
    "spark.staging": room(only=LEAVES),
    # Below the pipeline, which says what is written and when the tables are cared for.
    "spark.tables": room(only=LEAVES),
    "__main__": room(only={"cli"}),
}
