"""Contexts: what is kept, what is shown of it, and what comes before it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gnsq_like.cli.app import app
from gnsq_like.cli.client_flags import consumes
from gnsq_like.cli.daemon_flags import asks_cluster
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_file import context_path
from gnsq_like.tools.daemons import Daemons

Run = Callable[..., str]
given: dict[str, Any] = {}


@click.group()
def group() -> None: ...


@group.command("read", cls=ToolCommand)
@consumes
def read(verbose: bool, reading: dict[str, Any]) -> None:
    """Read."""
    given.update(reading)


@group.command("ask", cls=ToolCommand)
@asks_cluster
def ask(verbose: bool, daemons: Daemons) -> None:
    """Ask."""
    given.update(nsqds=daemons.nsqd_http_addresses, lookupds=daemons.lookupd_http_addresses, **daemons.options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command with a home of its own; returns its output."""

    def run(*arguments: str, status: int = 0, answer: str = "", **environment: str) -> str:
        given.clear()
        command = group if arguments[0] in ("read", "ask") else app
        runner = CliRunner(
            env={"XDG_CONFIG_HOME": str(tmp_path), "NSQ_CONTEXT": None, "NSQ_CONFIG": None, **environment}
        )
        done = runner.invoke(command, arguments, input=answer, prog_name="gnsq-like")
        assert done.exit_code == status, done.output
        return done.output

    return run


def test_a_context_gives_addresses_and_options(run: Run) -> None:
    run(
        "context",
        "add",
        "prod",
        "-l",
        "10.0.0.1",
        "-l",
        "[::1]:5161",
        "--tls-v1",
        "-msg-timeout=5s",
        "--http-client-request-timeout=9s",
    )
    run("read", "--context", "prod")
    assert given["lookupd_http_addresses"] == ("10.0.0.1:4161", "[::1]:5161")
    assert (given["options"]["tls_v1"], given["options"]["msg_timeout"]) == (True, 5.0)
    run("ask", NSQ_CONTEXT="prod")
    assert (given["lookupds"], given["timeout"]) == (("10.0.0.1:4161", "[::1]:5161"), 9.0)
    assert "there is no context prd; did you mean prod?" in run("ask", "-c", "prd", status=2)


@pytest.mark.parametrize(
    ("typed", "http"),
    [
        (["-d", "a"], "a:4151"),
        (["-d", "a:5150"], "a:5151"),
        (["-d", "a:5150", "--nsqd-http-address=a:1"], "a:1"),
    ],
)
def test_an_nsqd_is_known_by_both_of_its_ports(run: Run, typed: list[str], http: str) -> None:
    run("context", "add", "dev", *typed)
    run("ask", "-c", "dev")
    assert given["nsqds"] == (http,)
    run("read", "-c", "dev")
    assert given["nsqd_tcp_addresses"] == ("a:5150" if "a:5150" in typed else "a:4150",)


def test_what_comes_before_a_context(run: Run, tmp_path: Path) -> None:
    """The command line and a typed file; and for a context that the environment names, all of the environment."""
    run("context", "add", "dev", "-l", "context", "--msg-timeout=1s")
    run("read", "-c", "dev", "-l", "typed", "--msg-timeout=2s")
    assert (given["lookupd_http_addresses"], given["options"]["msg_timeout"]) == (("typed:4161",), 2.0)
    run("read", "-c", "dev", "-d", "typed")
    assert (given["lookupd_http_addresses"], given["nsqd_tcp_addresses"]) == ((), ("typed:4150",))
    config = tmp_path / "nsq.toml"
    config.write_text('nsqd_tcp_address = "file:1"\n')
    for arguments, environment in [(["-c", "dev"], {}), ([], {"NSQ_CONTEXT": "dev"})]:
        run("read", *arguments, f"--config={config}", **environment)
        assert (given["lookupd_http_addresses"], given["nsqd_tcp_addresses"]) == ((), ("file:1",))
        assert given["options"]["msg_timeout"] == 1.0
    environment = {"NSQ_NSQD_TCP_ADDRESS": "env:1", "NSQ_MSG_TIMEOUT": "3", "NSQ_CONFIG": str(config)}
    run("read", NSQ_CONTEXT="dev", **environment)
    assert (given["nsqd_tcp_addresses"], given["options"]["msg_timeout"]) == (("env:1",), 3.0)


def test_a_context_that_was_typed_comes_before_the_environment(run: Run, tmp_path: Path) -> None:
    """Else "channel empty --context dev" would empty a channel of the cluster that a shell's profile names."""
    run("context", "add", "dev", "-d", "dev", "--msg-timeout=1s")
    config = tmp_path / "nsq.toml"
    config.write_text('lookupd_http_address = "prod-file:1"\n')
    environment = {"NSQ_LOOKUPD_HTTP_ADDRESSES": "prod:1", "NSQ_NSQD_TCP_ADDRESS": "prod:2", "NSQ_MSG_TIMEOUT": "3"}
    for more in ({}, {"NSQ_CONFIG": str(config)}, {"NSQ_CONTEXT": "other"}):
        run("read", "--context=dev", **environment, **more)
        assert (given["nsqd_tcp_addresses"], given["lookupd_http_addresses"]) == (("dev:4150",), ())
        assert given["options"]["msg_timeout"] == 1.0


def test_secrets_are_kept_for_the_user_alone_and_shown_nowhere(run: Run, tmp_path: Path) -> None:
    secret = 'ses"ame\\ \x7f\u00e9'
    run("context", "add", "prod", "-l", "https://me:hush@10.0.0.1:4161", "--auth-secret", secret, "--snappy=false")
    path = tmp_path / "gnsq-like" / "contexts" / "prod.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    run("read", "-c", "prod")
    assert (given["options"]["auth_secret"], given["options"]["snappy"]) == (secret, False)
    path.write_text(path.read_text() + 'consumer_opt = ["auth_secret,hush"]\n')
    shown = run("context", "show", "prod") + run("context", "list", NSQ_CONTEXT="prod")
    assert "auth_secret = <hidden>" in shown
    assert "https://<hidden>@10.0.0.1:4161" in shown
    assert "*prod" in shown
    assert str(path) in shown
    assert not any(word in shown for word in ("hush", "sesame", "ame"))


def test_contexts_are_replaced_only_after_a_question_and_removed(run: Run) -> None:
    assert "context dev: kept in " in run("context", "add", "dev", "-l", "a")
    assert "Replace context dev?" in run("context", "add", "dev", "-l", "b", status=1, answer="n\n")
    assert "lookupd_http_address = a\n" in run("context", "show", "dev")
    run("context", "add", "dev", "-l", "b", "--yes")
    assert "lookupd_http_address = b\n" in run("context", "show", "dev")
    assert run("context", "remove", "dev") == "context dev: removed\n"
    assert "dev.toml: No such file or directory" in run("context", "remove", "dev", status=1)
    assert run("context", "list").split() == ["CONTEXT", "NSQD", "NSQD", "HTTP", "NSQLOOKUPD", "OTHERS"]


@pytest.mark.parametrize("configured", ["", "relative"])
def test_contexts_are_kept_in_one_place_whatever_the_directory(
    configured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", configured)
    assert context_path("dev") == tmp_path / ".config/gnsq-like/contexts/dev.toml"
