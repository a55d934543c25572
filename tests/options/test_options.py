"""Options: each one's type and bounds, unknown names, and what IDENTIFY says of them."""

import json
import pickle
import ssl
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import Producer, Reader
from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.options import ConnectionOptions, ProducerOptions, ReaderOptions, make_options

CLASSES = [ConnectionOptions, ProducerOptions, ReaderOptions]
#: Each option once; those of connections are the same fields in all of them.
ALL = list({option: (cls, option) for cls in reversed(CLASSES) for option in fields(cls)}.values())
NUMBERS = [each for each in ALL if each[1].metadata["kind"] in (int, float)]


def named(params):
    return [pytest.param(*each, id=f"{each[0].__name__}.{each[1].name}") for each in params]


def kinds(option):
    kind = option.metadata["kind"]
    return kind if isinstance(kind, tuple) else (kind,)


def make(cls, option, value):
    # server_hostname and its like mean nothing without TLS.
    tls = {} if option.name == "tls_v1" else {"tls_v1": True}
    return getattr(make_options(cls, {option.name: value, **tls}), option.name)


@pytest.mark.parametrize(("cls", "option"), named(ALL))
def test_the_default_is_right(cls, option):
    default = getattr(cls(), option.name)
    assert make(cls, option, default) == default


@pytest.mark.parametrize(("cls", "option"), named(ALL))
def test_a_value_of_another_type_is_refused(cls, option):
    rules = option.metadata
    wrong = [[], object(), b"bytes", 1j]
    if str not in kinds(option):
        wrong.append("5")
    if bool not in kinds(option):
        wrong.append(True)
    if not {int, float} & set(kinds(option)):
        wrong += [5, 0.5]
    if kinds(option) == (int,):
        wrong.append(2.5)
    if None not in rules["also"] and type(None) not in kinds(option):
        wrong.append(None)
    if not rules["call"]:
        wrong.append(print)
    for value in wrong:
        with pytest.raises(InvalidOption) as caught:
            make(cls, option, value)
        assert caught.value.option == option.name
        assert option.name in str(caught.value)
        assert ("<hidden>" if rules["secret"] else repr(value)) in str(caught.value)


@pytest.mark.parametrize(("cls", "option"), named(NUMBERS))
def test_bounds_are_kept(cls, option):
    rules = option.metadata
    step = 1 if rules["kind"] is int else 1e-9
    if rules["minimum"] is not None:
        assert make(cls, option, rules["minimum"]) == rules["minimum"]
        below = rules["minimum"] - step
    else:
        below = rules["above"]
        assert make(cls, option, below + 1e-3) == below + 1e-3
    with pytest.raises(InvalidOption, match=r"at least|above"):
        make(cls, option, below)
    with pytest.raises(InvalidOption):
        make(cls, option, -1000)
    if rules["maximum"] is not None:
        assert make(cls, option, rules["maximum"]) == rules["maximum"]
        with pytest.raises(InvalidOption, match="at most"):
            make(cls, option, rules["maximum"] + step)


@pytest.mark.parametrize(("cls", "option"), named(each for each in NUMBERS if each[1].metadata["kind"] is float))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_are_finite(cls, option, value):
    with pytest.raises(InvalidOption):
        make(cls, option, value)


@pytest.mark.parametrize(("cls", "option"), named(each for each in ALL if each[1].metadata["choices"]))
def test_what_is_to_be_chosen_is_listed(cls, option):
    for choice in option.metadata["choices"]:
        assert make(cls, option, choice) == choice
    with pytest.raises(InvalidOption, match=option.metadata["choices"][0]):
        make(cls, option, "something else")


@pytest.mark.parametrize(("cls", "option"), named(each for each in ALL if each[1].metadata["call"]))
def test_callables_are_taken_where_they_may_stand(cls, option):
    assert make(cls, option, print) is print


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_inflight": 5}, "did you mean max_in_flight"),
        ({"msg_timeot": 5}, "did you mean msg_timeout"),
        ({"requeue_delay": 5}, "did you mean default_requeue_delay"),
        ({"tls_root_ca": "/etc/ca.pem"}, "did you mean tls_root_ca_file"),
        ({"heartbeat": 5}, "no such option"),
        ({"xyzzy": 5}, "no such option"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_named(options, part):
    with pytest.raises(InvalidOption, match=part):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", **options)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"address_map": "127.0.0.1:4150"}, "it must be of type dict or callable"),
        ({"discovery_filter": "east"}, "it must be callable"),
        ({"tls_v1": "always"}, "it must be of type bool or 'prefer'"),
        ({"auth_secret": 5}, "it must be of type str or callable"),
    ],
)
def test_a_value_of_another_type_is_answered_with_those_that_are_valid(options, part):
    with pytest.raises(InvalidOption) as caught:
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", **options)
    assert str(caught.value).endswith(part)


def test_reader_and_producer_refuse_each_others_options():
    with pytest.raises(InvalidOption):
        Producer("127.0.0.1:4150", max_in_flight=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", max_pending_count=5)  # type: ignore[call-arg]


def test_a_wrong_option_is_also_a_value_error():
    with pytest.raises(ValueError, match="max_in_flight") as caught:
        ReaderOptions(max_in_flight=-1)
    assert isinstance(caught.value, InvalidOption)
    assert isinstance(caught.value, UsageError)
    assert (caught.value.option, caught.value.value) == ("max_in_flight", -1)


def test_options_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        ReaderOptions().max_in_flight = 5  # type: ignore[misc]


# -- TLS, codecs, AUTH ------------------------------------------------------------------------------

SSL_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"snappy": True, "deflate": True}, "only one of the two"),
        ({"snappy": "prefer", "deflate": "prefer"}, "only one of the two"),
        ({"snappy": "yes"}, "of type bool or 'prefer'"),
        ({"tls_v1": "perfer"}, "of type bool or 'prefer'"),
        ({"tls_root_ca_file": "ca.pem"}, "tls_root_ca_file.*tls_v1=True"),
        ({"verify": False}, "verify.*tls_v1=True"),
        ({"server_hostname": "nsqd"}, "server_hostname.*tls_v1=True"),
        ({"tls_v1": True, "server_hostname": ""}, "server_hostname.*must not be empty"),
        ({"ssl_context": SSL_CONTEXT}, "ssl_context.*tls_v1=True"),
        ({"tls_v1": True, "tls_key": "key.pem"}, "needs tls_cert"),
        ({"tls_v1": True, "ssl_context": SSL_CONTEXT, "tls_root_ca_file": "ca.pem"}, "no effect with ssl_context"),
        ({"tls_v1": True, "ssl_context": SSL_CONTEXT, "verify": False}, "no effect with ssl_context"),
        ({"deflate": True, "deflate_level": 0}, "it must be at least 1"),
        ({"deflate": True, "deflate_level": 10}, "it must be at most 9"),
        ({"auth_secret": ""}, "must not be empty"),
        ({"auth_secret": "caf\udce9"}, "UTF-8"),
    ],
)
def test_what_does_not_go_together_is_refused(options, part):
    with pytest.raises(InvalidOption, match=part):
        ConnectionOptions(**options)


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({}, []),
        ({"tls_v1": True, "snappy": True}, ["tls_v1", "snappy"]),
        ({"tls_v1": "prefer", "deflate": True}, ["deflate"]),
        ({"tls_v1": True, "ssl_context": SSL_CONTEXT, "server_hostname": "nsqd"}, ["tls_v1"]),
    ],
)
def test_what_nsqd_must_grant_and_what_it_is_asked_for(options, required):
    made = ConnectionOptions(**options)
    assert made.required_upgrades == required
    sent = made.identify_fields()
    for name in ("tls_v1", "snappy", "deflate"):
        assert sent[name] is bool(options.get(name))
    assert sent.get("deflate_level") == (6 if "deflate" in options else None)


def test_the_secret_is_shown_nowhere():
    secret = "correct horse battery staple"
    options = ProducerOptions(auth_secret=secret, lookupd_authorization=f"Bearer {secret}")
    assert options.auth_secret == secret
    assert secret not in repr(options) + str(options) + json.dumps(options.identify_fields())
    for wrong in ({"auth_secret": secret.encode()}, {"auth_secrt": secret}, {"lookupd_authorization": [secret]}):
        with pytest.raises(InvalidOption) as caught:
            make_options(ProducerOptions, wrong)
        assert secret not in str(caught.value) + repr(caught.value)


def test_options_can_be_pickled():
    options = ReaderOptions(
        tls_v1=True, tls_root_ca_file="ca.pem", auth_secret="s", deflate="prefer", topology_zone="z"
    )
    assert pickle.loads(pickle.dumps(options)) == options


# -- IDENTIFY ---------------------------------------------------------------------------------------


def test_identify_says_what_is_set_and_leaves_the_rest_to_nsqd():
    sent = ConnectionOptions(client_id="me", hostname="me.example", user_agent="ua").identify_fields()
    assert {name: sent[name] for name in ("client_id", "hostname", "user_agent")} == {
        "client_id": "me",
        "hostname": "me.example",
        "user_agent": "ua",
    }
    assert sent["feature_negotiation"] is True
    assert sent["heartbeat_interval"] == 30_000
    assert (sent["output_buffer_size"], sent["output_buffer_timeout"]) == (65536, 25)
    assert sent["sample_rate"] == 0
    assert not {"msg_timeout", "max_in_flight", "connect_timeout"} & sent.keys()


def test_where_the_client_runs_is_told_if_it_is_known():
    assert not {"topology_region", "topology_zone"} & ConnectionOptions().identify_fields().keys()
    sent = ConnectionOptions(topology_region="eu", topology_zone="eu-1").identify_fields()
    assert (sent["topology_region"], sent["topology_zone"]) == ("eu", "eu-1")


def test_identify_of_a_reader_holds_nothing_of_the_readers_own():
    options: dict[str, Any] = {"client_id": "a", "hostname": "b"}
    assert ReaderOptions(**options).identify_fields() == ConnectionOptions(**options).identify_fields()


def test_minus_one_stays_minus_one():
    sent = ConnectionOptions(output_buffer_size=-1, output_buffer_timeout=-1).identify_fields()
    assert (sent["output_buffer_size"], sent["output_buffer_timeout"]) == (-1, -1)


seconds = st.one_of(st.integers(1, 3600), st.floats(1, 3600))


@given(heartbeat=seconds, msg_timeout=seconds, buffer=st.floats(1e-6, 3600), size=st.integers(64, 2**31 - 1))
def test_durations_are_sent_as_whole_milliseconds(heartbeat, msg_timeout, buffer, size):
    """nsqd refuses 2000.0 (docs/internals 8.51)."""
    sent = ConnectionOptions(
        heartbeat_interval=heartbeat, msg_timeout=msg_timeout, output_buffer_timeout=buffer, output_buffer_size=size
    ).identify_fields()
    for name, given_value in (
        ("heartbeat_interval", heartbeat),
        ("msg_timeout", msg_timeout),
        ("output_buffer_timeout", buffer),
    ):
        value = sent[name]
        assert type(value) is int
        assert value >= 1
        assert value == pytest.approx(given_value * 1000, abs=1)
    assert sent["output_buffer_size"] == size
    assert json.loads(json.dumps(sent)) == sent
    assert "." not in json.dumps({name: value for name, value in sent.items() if not isinstance(value, str)})


@pytest.mark.parametrize("wrong", [{"nsqd-1": "127.0.0.1:4150"}, {"nsqd-1:4150": "127.0.0.1"}, {"nsqd-1:4150": 4150}])
@pytest.mark.parametrize("cls", [ReaderOptions, ProducerOptions])
def test_an_address_map_has_addresses(cls, wrong):
    assert make_options(cls, {"address_map": {"nsqd-1:4150": "unix:/run/nsqd.sock"}})
    with pytest.raises(InvalidOption, match=r"address_map.*invalid address"):
        make_options(cls, {"address_map": wrong})
