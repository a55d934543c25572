"""The options that all tools have: Go's notation, the environment, the file; on a command made here."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from gnsq_like._version import __version__
from gnsq_like.cli.app import app
from gnsq_like.cli.client_flags import all_flags, channel, consumes, publishes, topics
from gnsq_like.cli.tool_command import ToolCommand, one_line
from gnsq_like.cli.tool_options import Duration, option, printable, switch
from gnsq_like.errors import HTTPRequestFailed, NsqdError
from gnsq_like.options import ProducerOptions, ReaderOptions
from gnsq_like.tools.client_options import text_options

given: dict[str, Any] = {}


@click.group()
def group() -> None: ...


@group.command("copy", cls=ToolCommand)
@topics
@channel("copies")
@option("--sync-interval", type=Duration(), default="30s", help="Time.")
@option("--header", "headers", multiple=True, help="Header.")
@option("-n", "count", type=int, default=0, help="Count.")
@switch("--gzip", help="Compress.")
@consumes
@publishes
@click.argument("files", nargs=-1)
def copy(verbose: bool, **values: Any) -> None:
    """Copy."""
    given.update(values)
    if "fail" in values["files"]:
        raise HTTPRequestFailed("http://x", "no answer")


@group.command("other", cls=ToolCommand)
def other(verbose: bool) -> None:
    """Another."""


NSQD = ["--nsqd-tcp-address", "127.0.0.1:4150"]


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    given.clear()
    return CliRunner(env=env).invoke(group, ["copy", *args])


def values(*args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = run(*args, env=env)
    assert done.exit_code == 0, done.output
    return dict(given)


def refusal(*args: str, env: dict[str, str] | None = None, status: int = 2) -> str:
    done = run(*args, env=env)
    assert done.exit_code == status
    return done.output.splitlines()[-1]


# -- Go's notation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["--topic", "clicks", "--topic", "views", "--gzip", "-n", "5", "--sync-interval=1m"],
        ["-topic=clicks", "-topic", "views", "-gzip", "-n=5", "-sync-interval", "60s"],
        ["--topic=clicks", "-topic=views", "-gzip=true", "-n5", "--sync-interval", "60000ms"],
    ],
)
def test_one_dash_or_two(args: list[str]) -> None:
    found = values(*NSQD, *args)
    assert found["topics"] == ("clicks", "views")
    assert (found["gzip"], found["count"], found["sync_interval"]) == (True, 5, 60.0)


def test_texts_of_daemons_do_not_control_a_terminal() -> None:
    assert (
        one_line(NsqdError("E_BAD_TOPIC \x1b[2J\n\ttwo\x9b0m \u202e ä")) == "nsqd answered E_BAD_TOPIC ?[2J two?0m ? ä"
    )
    assert printable("a\tb\nc\r\udcff", "\n\t") == "a\tb\nc??"


def test_a_switch_takes_no_argument_that_follows() -> None:
    found = values(*NSQD, "-topic=t", "--gzip", "one", "-snappy", "two", "--", "-three")
    assert found["files"] == ("one", "two", "-three")
    assert found["reading"]["options"]["snappy"] is True


def test_a_switch_can_be_turned_off() -> None:
    assert values(*NSQD, "--gzip=false", env={"NSQ_GZIP": "true"})["gzip"] is False


def test_a_value_may_begin_with_a_dash() -> None:
    assert values(*NSQD, "--header", "-topic: x")["headers"] == ("-topic: x",)


# -- where values come from -------------------------------------------------------------------------


def test_the_environment() -> None:
    env = {
        "NSQ_TOPIC": "clicks, views",
        "NSQ_LOOKUPD_HTTP_ADDRESSES": "10.0.0.1:4161 10.0.0.2:4161",
        "NSQ_HEADER": "A: b, c\nD: e",
        "NSQ_GZIP": "yes",
        "NSQ_SYNC_INTERVAL": "5",
        "NSQ_MSG_TIMEOUT": "90",
        "NSQ_MAX_IN_FLIGHT": "7",
    }
    found = values(env=env)
    assert found["topics"] == ("clicks", "views")
    assert found["headers"] == ("A: b, c", "D: e")
    assert (found["gzip"], found["sync_interval"]) == (True, 5.0)
    assert found["reading"]["lookupd_http_addresses"] == ("10.0.0.1:4161", "10.0.0.2:4161")
    assert found["reading"]["options"]["msg_timeout"] == 90.0
    assert found["reading"]["options"]["max_in_flight"] == 7


def test_a_bare_number_on_the_command_line_is_no_duration() -> None:
    assert "'5'" in refusal(*NSQD, "--sync-interval=5")
    assert "duration" in refusal(*NSQD, "--msg-timeout=5")


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nsq.toml"
    path.write_text(
        'lookupd_http_address = ["a:1", "b:2"]\ntopic = "clicks"\nmsg-timeout = "5s"\nsnappy = true\n'
        "[copy]\nsync_interval = '1m'\nmax_in_flight = 9\nconsumer-opt = ['max_attempts,2']\ntopic = ['t']\n"
        "[other]\nwhatever = 1\n"
    )
    found = values("--config", str(path), "--sync-interval=2m", env={"NSQ_CHANNEL": "env"})
    assert (found["topics"], found["channel"], found["sync_interval"]) == (("t",), "env", 120.0)
    reading = found["reading"]
    assert reading["lookupd_http_addresses"] == ("a:1", "b:2")
    options = reading["options"]
    assert (options["msg_timeout"], options["snappy"], options["max_in_flight"]) == (5.0, True, 9)
    assert options["max_attempts"] == 2
    assert values(env={"NSQ_CONFIG": str(path)})["sync_interval"] == 60.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[copy]\ngzzip = true", "there is no option gzzip; did you mean gzip?"),
        ("gzzip = true", "there is no option of all tools gzzip"),
        ("[cpoy]\ngzip = true", "there is no tool cpoy"),
        ("gzip = [true]", "gzip must be one value"),
        ("gzip =", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "nsq.toml"
    path.write_text(text)
    line = refusal(*NSQD, "--config", str(path))
    assert str(path) in line
    assert words.partition(";")[0] in line


def test_a_missing_file_is_refused() -> None:
    assert "cannot read /nowhere/nsq.toml: No such file" in refusal(*NSQD, "--config=/nowhere/nsq.toml")


def test_the_top_of_the_file_may_name_what_only_others_have(tmp_path: Path) -> None:
    path = tmp_path / "nsq.toml"
    path.write_text('topic = "x"\nbatching = true\nlookupd_http_address = "a:1"\n')
    done = CliRunner().invoke(group, ["other", "--config", str(path)])
    assert done.exit_code == 0, done.output


# -- addresses and the client's options -------------------------------------------------------------


def test_the_command_line_beats_the_other_kind_in_the_environment() -> None:
    env = {"NSQ_NSQD_TCP_ADDRESSES": "e:1", "NSQ_LOOKUPD_HTTP_ADDRESSES": "e:2"}
    assert values(*NSQD, env=env)["reading"]["nsqd_tcp_addresses"] == ("127.0.0.1:4150",)
    # As for Flask and Django: with both, readers use nsqlookupds.
    reading = values(env=env)["reading"]
    assert reading["lookupd_http_addresses"] == ("e:2",)
    assert reading["nsqd_tcp_addresses"] == ()


def test_a_flag_is_for_both_sides_and_a_pair_for_one() -> None:
    found = values(
        *NSQD, "-max-redial-delay=1s", "--tls-v1=prefer", "--max-attempts=9", "--linger=1ms",
        "--consumer-opt", "max_attempts,2", "--producer-opt", "client_id,me", "--producer-opt=max-redial-delay,5s",
    )  # fmt: skip
    consumer, producer = found["reading"]["options"], found["publishing"]
    assert (consumer["max_redial_delay"], consumer["tls_v1"], consumer["max_attempts"]) == (1.0, "prefer", 2)
    assert (producer["max_redial_delay"], producer["tls_v1"], producer["linger"]) == (5.0, "prefer", 0.001)
    assert producer["client_id"] == "me"
    assert "linger" not in consumer
    assert consumer["user_agent"].startswith("copy/")


def test_every_option_of_the_client_has_a_flag_and_a_description() -> None:
    flags = {flag.name for flag in all_flags()}
    assert {*text_options(ReaderOptions), *text_options(ProducerOptions)} - flags == {"max_in_flight", "concurrency"}
    done = run("--help-client")
    assert done.exit_code == 0
    listed = {line.split()[0] for line in done.output.splitlines() if line.startswith("  --")}
    assert listed == {flag.opts[0] for flag in all_flags()}
    assert max(map(len, done.output.splitlines())) <= 80


def test_the_help_of_a_client_flag_is_whole_without_its_part_about_python() -> None:
    texts = [flag.help or "" for flag in all_flags()]
    assert [text for text in texts if text.count("(") != text.count(")") or not text.endswith(".")] == []


def test_help_is_short_and_fits() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert "--snappy" not in done.output
    assert "[default: 30s]" in " ".join(done.output.split())
    assert max(map(len, done.output.splitlines())) <= 80


# -- errors -----------------------------------------------------------------------------------------


def test_an_error_is_one_line_and_its_traceback_only_with_verbose() -> None:
    done = run(*NSQD, "--topic=t", "fail")
    assert (done.exit_code, done.output) == (1, "Error: http://x: no answer\n")
    done = run(*NSQD, "--verbose", "--topic=t", "fail")
    assert done.exit_code == 1
    assert "Traceback" in done.output
    assert done.output.endswith("Error: http://x: no answer\n")


def test_version() -> None:
    done = CliRunner().invoke(group, ["copy", "-version"], prog_name="gnsq-like")
    assert (done.exit_code, done.output) == (0, f"gnsq-like copy {__version__}\n")


def test_errors_name_a_number_as_people_do() -> None:
    """click calls those with bounds "integer range"."""

    def kinds(command: click.Command, name: str) -> dict[str, str]:
        found = {f"{name} {param.name}": param.type.name for param in command.params}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for each in command.list_commands(context):
                found |= kinds(command.get_command(context, each), f"{name} {each}")  # type: ignore[arg-type]
        return found

    found = kinds(app, "gnsq-like")
    assert len(found) > 100
    assert {name: kind for name, kind in found.items() if "range" in kind} == {}
