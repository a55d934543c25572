"""The client's options as text."""

from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.options import ConnectionOptions, ProducerOptions, ReaderOptions, make_options
from gnsq_like.tools.client_options import GO_NAMES, NOT_AS_TEXT, parse_pairs, parse_value, text_options


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_in_flight", "200", 200),
        ("msg_timeout", "1m30s", 90.0),
        ("msg_timeout", "0", None),
        ("msg_timeout", "none", None),
        ("default_requeue_delay", "0", 0.0),
        ("lookupd_poll_jitter", "0.25", 0.25),
        ("output_buffer_timeout", "250ms", 0.25),
        ("output_buffer_timeout", "-1", -1),
        ("output_buffer_size", "-1", -1),
        ("snappy", "true", True),
        ("snappy", "False", False),
        ("snappy", "prefer", "prefer"),
        ("lookupd_verify", "false", False),
        ("lookupd_verify", "/etc/ca.pem", "/etc/ca.pem"),
        ("lookupd_cert", "cert.pem,key.pem", ("cert.pem", "key.pem")),
        ("lookupd_cert", "both.pem", "both.pem"),
        ("backoff_strategy", "full_jitter", "full_jitter"),
        ("client_id", "17", "17"),
        ("auth_secret", "a,b c", "a,b c"),
    ],
)
def test_a_value_has_the_options_type(name: str, text: str, value: Any) -> None:
    parsed = parse_value(ReaderOptions, name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("max_in_flight", "many", "it must be a whole number"),
        ("msg_timeout", "90", "it must be a duration"),
        ("snappy", "perhaps", "it must be true or false"),
        ("lookupd_poll_jitter", "x", "it must be a number"),
    ],
)
def test_a_malformed_value_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason) as caught:
        parse_value(ReaderOptions, name, text)
    assert (caught.value.option, caught.value.value) == (name, text)


def test_a_bare_number_has_the_unit_of_its_place() -> None:
    assert parse_value(ReaderOptions, "msg_timeout", "90", default_unit="s") == 90.0


def test_pairs_are_those_of_nsqs_utilities() -> None:
    pairs = [
        "max_attempts,3",
        "snappy",
        "tls-insecure-skip-verify",
        "tls_v1,true",
        "dial_timeout,2s",
        "read_timeout,9s",
    ]
    assert parse_pairs(ReaderOptions, [*pairs, "tls_min_version,tls1.2"]) == {
        "max_attempts": 3,
        "snappy": True,
        "verify": False,
        "tls_v1": True,
        "connect_timeout": 2.0,
    }


def test_an_unknown_name_is_an_error_that_shows_no_value() -> None:
    with pytest.raises(InvalidOption, match=r"there is no such option.*auth_secret") as caught:
        parse_pairs(ReaderOptions, ["auth_secrt,sesame"])
    assert "sesame" not in str(caught.value)
    with pytest.raises(InvalidOption, match="tls_min_version"):
        parse_pairs(ReaderOptions, ["tls_min_version,tls1.3"])


@pytest.mark.parametrize("kind", [ReaderOptions, ProducerOptions])
def test_each_default_can_be_written(kind: type[ConnectionOptions]) -> None:
    """Whatever a default is, its text is read as the same value."""
    options = make_options(kind, {})
    for name in text_options(kind):
        default = getattr(options, name)
        text = f"{default}s" if isinstance(default, float) and name != "lookupd_poll_jitter" else str(default).lower()
        if not isinstance(default, str):
            assert parse_value(kind, name, text) == default, name


def test_lists_name_what_exists() -> None:
    names = {*text_options(ReaderOptions), *text_options(ProducerOptions)}
    assert set(GO_NAMES.values()) <= names
    assert not NOT_AS_TEXT & names
