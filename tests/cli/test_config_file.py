"""NSQ's config files, as flags' defaults."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gnsq_like._version import __version__
from gnsq_like.admin import AdminOptions
from gnsq_like.cli.admin import admin
from gnsq_like.cli.daemon_commands import defaults_from, nsqd, nsqlookupd
from gnsq_like.server import NsqdOptions
from gnsq_like.server.daemon_options import VERSION


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "nsqd.cfg"


def options_of(command: click.Command, *args: str) -> dict[str, Any]:
    """The values that the command would get."""
    return command.make_context(command.name, list(args)).params


def test_the_command_line_has_the_last_word_then_the_file_then_the_default(config: Path) -> None:
    config.write_text(
        """
        tcp_address = "127.0.0.1:1"
        http_address = "127.0.0.1:2"
        id = 9
        msg_timeout = "1m30s"
        max_msg_timeout = 1500
        nsqlookupd_tcp_addresses = ["127.0.0.1:3", "127.0.0.1:4"]
        snappy = false
        verbose = true
        """
    )
    found = options_of(nsqd, "--config", str(config), "-tcp-address=127.0.0.1:5")
    assert found["tcp_address"] == "127.0.0.1:5"
    assert found["http_address"] == "127.0.0.1:2"
    assert found["node_id"] == 9
    assert (found["msg_timeout"], found["max_msg_timeout"]) == (90.0, 1.5)
    assert found["lookupd_tcp_addresses"] == ("127.0.0.1:3", "127.0.0.1:4")
    assert found["snappy"] is False
    assert found["max_rdy_count"] == 2500


def test_what_nsqs_own_examples_of_config_files_and_old_command_lines_have_is_taken(config: Path) -> None:
    config.write_text('log_level = "INFO"\ntls_min_version = ""\ntls_required = false\nworker_id = 3')
    ignored = ["-verbose", "--worker-id=3", "-queue-scan-worker-pool-max", "4", "--queue-scan-selection-count=10"]
    found = options_of(nsqd, "--config", str(config), *ignored, "-mem-queue-size=7")
    assert found["mem_queue_size"] == 7
    assert not {"verbose", "worker_id"} & set(found)
    options = NsqdOptions(log_level=found["log_level"], tls_min_version=found["tls_min_version"])
    assert (options.log_level, options.tls_min_version) == ("info", "tls1.2")
    assert "verbose" not in options_of(nsqlookupd, "-verbose")


def test_the_version_names_the_daemon() -> None:
    done = CliRunner().invoke(nsqlookupd, ["-version"])
    assert done.exit_code == 0
    # As NSQ's, which programs parse: neither a space nor a comma within the brackets.
    wanted = rf"nsqlookupd v{re.escape(VERSION)} \(built w/[a-z0-9.-]+\) gnsq_like {re.escape(__version__)}\n"
    assert re.fullmatch(wanted, done.output)


def test_nsqlookupd_has_one_too(config: Path) -> None:
    config.write_text('tombstone_lifetime = "1s"')
    assert options_of(nsqlookupd, "--config", str(config))["tombstone_lifetime"] == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("msg_timout = 1", "there is no option msg_timout; did you mean msg_timeout?"),
        ("node_id = 1", "there is no option node_id"),
        ("tcp_address = [1]", "tcp_address must be one value"),
        ("nsqlookupd_tcp_addresses = {a = 1}", "nsqlookupd_tcp_addresses must be a list"),
        ("msg-timout = 1", "there is no option msg-timout; did you mean msg_timeout?"),
        ("msg_timeout", "is not TOML"),
        ("msg_timeout = 'soon'", "'soon': it must be a duration such as"),
        ("max_rdy_count = 'many'", "'many' is not a valid integer"),
    ],
)
def test_a_file_that_is_wrong_is_refused(config: Path, text: str, said: str) -> None:
    config.write_text(text)
    with pytest.raises(click.UsageError) as caught:
        options_of(nsqd, "--config", str(config))
    assert said in caught.value.format_message()


def test_one_text_may_stand_where_a_list_does(config: Path) -> None:
    config.write_text('nsqlookupd_tcp_addresses = "a:1,b:2"\ne2e_processing_latency_percentiles = 0.99')
    found = options_of(nsqd, "--config", str(config))
    assert found["lookupd_tcp_addresses"] == ("a:1", "b:2")
    assert found["e2e_processing_latency_percentiles"] == (0.99,)


#: What NSQ's examples of 1.1 and 1.2 have beside names that are known still.
OLD_EXAMPLE = """
## log verbosity level: debug, info, warn, error, or fatal
log-level = "error"
verbose = false
tcp_address = "0.0.0.0:4150"
nsqlookupd_tcp_addresses = [
    "127.0.0.1:4160"
]
http_client_connect_timeout = "2s"
mem_queue_size = 10000
max_msg_size = 1024768
max_output_buffer_timeout = "1s"
statsd_prefix = "nsq.%s"
statsd_interval = "60s"
statsd_mem_stats = true
e2e_processing_latency_percentiles = [
    1.0,
    0.99,
    0.95
]
e2e_processing_latency_window_time = "10m"
tls_cert = ""
tls_key = ""
tls_required = false
tls_min_version = ""
deflate = true
max_deflate_level = 6
snappy = true
"""


def test_what_is_ignored_is_one_line_of_warning(config: Path, tmp_path: Path) -> None:
    """As in NSQ's, a name with dashes is none; everything else of the file is taken."""
    config.write_text(OLD_EXAMPLE + "data_path = '/nowhere/to/be/found'")
    done = CliRunner().invoke(nsqd, ["--config", str(config), "-verbose", "", "--worker-id=3", ""])
    assert done.exit_code == 1
    warning, error = done.output.splitlines()
    assert warning.startswith("WARNING: without an effect here, see docs/daemons.rst: ")
    assert f"log-level in {config} (its name there is log_level)" in warning
    assert {"--verbose", "--worker-id", f"verbose in {config}", f"statsd_mem_stats in {config}"} <= set(
        warning.partition(": ")[2].split(": ")[1].split(", ")
    )
    assert error.startswith("Error: nsqd cannot start: failed to lock data-path: ")
    found = options_of(nsqd, "--config", str(config))
    assert (found["log_level"], found["max_output_buffer_timeout"]) == ("info", 1.0)
    assert found["e2e_processing_latency_percentiles"] == (1.0, 0.99, 0.95)


@pytest.mark.parametrize("command", [nsqd, nsqlookupd, admin])
def test_empty_arguments_are_those_of_variables_that_are_not_set(command: click.Command) -> None:
    found = options_of(command, "", "--log-level=warn", "", "-http-address", "127.0.0.1:0", "")
    assert (found["log_level"], found["http_address"]) == ("warn", "127.0.0.1:0")
    with pytest.raises(click.UsageError, match="there are no arguments without a name: clicks"):
        options_of(command, "", "clicks")


def test_flags_of_statsd_are_named_in_a_warning() -> None:
    done = CliRunner().invoke(nsqd, ["--statsd-address=127.0.0.1:8125", "-statsd-mem-stats", "--data-path=/nowhere"])
    assert done.output.splitlines()[0] == (
        "WARNING: without an effect here, see docs/daemons.rst: --statsd-address, --statsd-mem-stats"
    )
    flags = ["--graphite-url=http://graphite", "--proxy-graphite", "--statsd-interval=10s", "--http-address=nowhere"]
    done = CliRunner().invoke(admin, ["--nsqd-http-address=127.0.0.1:4151", *flags])
    assert done.output.splitlines()[0] == (
        "WARNING: without an effect here, see docs/admin.rst: --graphite-url, --proxy-graphite, --statsd-interval"
    )


def test_empty_values_of_lists_are_left_out() -> None:
    found = options_of(nsqd, "--lookupd-tcp-address=", "--e2e-processing-latency-percentile=", "--enable-experiment=")
    options = NsqdOptions(**{name: value for name, value in found.items() if value is not None and name[:4] != "exit"})
    assert options.lookupd_tcp_addresses == options.enable_experiment == ()
    assert options.e2e_processing_latency_percentiles == ()
    assert AdminOptions(nsqd_http_addresses=("", "127.0.0.1:4151")).nsqd_http_addresses == ("127.0.0.1:4151",)


def test_a_missing_file_is_refused(config: Path) -> None:
    with pytest.raises(click.UsageError, match=r"cannot read .*: No such file or directory"):
        options_of(nsqd, "--config", str(config))


def test_every_option_can_stand_in_a_file(config: Path) -> None:
    """NSQ's own names are tested above; this tests every kind of option."""

    @dataclass
    class Kinds:
        text: str = "x"
        number: int = 1
        seconds: float = 1.0
        flag: bool = False
        several: tuple[str, ...] = ()
        computed: int = field(default_factory=int)

    config.write_text('text = "y"\nnumber = 2\nseconds = 3\nflag = true\nseveral = ["a"]\ncomputed = 4')
    assert defaults_from(str(config), Kinds)[0] == {
        "text": "y",
        "number": "2",
        "seconds": "3ms",
        "flag": "true",
        "several": ["a"],
        "computed": "4",
    }


def test_the_flags_defaults_are_the_options_defaults() -> None:
    plain = vars(NsqdOptions())
    given = {name: value for name, value in options_of(nsqd).items() if value is not None and name in plain}
    assert {name for name, value in given.items() if plain[name] != value} <= {"data_path"}
    assert len(given) > 30
