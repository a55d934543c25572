"""From a framework's configuration and the environment to the options of Reader and Producer."""

from dataclasses import fields

import pytest

from gnsq_like.contrib.shared.settings import make_settings
from gnsq_like.errors import InvalidOption
from gnsq_like.options import ProducerOptions, ReaderOptions

OWN = {"RECORD": (False, (bool,)), "STOP_TIMEOUT": (30.0, (float,)), "MODE": (None, (str,))}


def settings(given=(), environ=(), **more):
    return make_settings(dict(given), own=OWN, environ=dict(environ), **more)


def test_nothing_set_is_nothing_given():
    made = settings()
    assert (made.producer, made.reader) == ({}, {})
    assert made.own == {"RECORD": False, "STOP_TIMEOUT": 30.0, "MODE": None}


def test_an_own_setting_without_a_value_has_its_default():
    made = settings({"RECORD": None}, {"NSQ_STOP_TIMEOUT": "", "NSQ_MODE": "fast"})
    assert made.own == {"RECORD": False, "STOP_TIMEOUT": 30.0, "MODE": "fast"}


def test_an_option_goes_where_it_exists():
    made = settings({"HEARTBEAT_INTERVAL": 5, "MAX_IN_FLIGHT": 9, "BATCHING": True})
    assert made.producer == {"heartbeat_interval": 5, "batching": True}
    assert made.reader == {"heartbeat_interval": 5, "max_in_flight": 9}


def test_a_side_of_its_own_counts_more():
    made = settings({"HEARTBEAT_INTERVAL": 5, "READER_HEARTBEAT_INTERVAL": 7, "PRODUCER_CLIENT_ID": "web"})
    assert made.producer == {"heartbeat_interval": 5, "client_id": "web"}
    assert made.reader == {"heartbeat_interval": 7}


def test_the_configuration_counts_more_than_the_environment():
    made = settings({"TIMEOUT": 3}, {"NSQ_TIMEOUT": "4", "NSQ_MAX_IN_FLIGHT": "5", "TIMEOUT": "6"})
    assert made.producer == {"timeout": 3}
    assert made.reader == {"max_in_flight": 5}


def test_a_web_applications_publishes_fail_fast_and_soon_unless_it_is_set():
    made = settings({"NSQD_TCP_ADDRESSES": "a:1"}).make_producer(repr)
    assert (made.options.fail_fast, made.options.timeout) == (True, 2.0)
    made = settings({"NSQD_TCP_ADDRESSES": "a:1", "FAIL_FAST": False, "PUBLISH_TIMEOUT": 7}).make_producer(repr)
    assert (made.options.fail_fast, made.options.timeout) == (False, 7)


def test_publish_timeout_is_the_producers_timeout():
    assert settings({"TIMEOUT": 3, "PRODUCER_TIMEOUT": 4, "PUBLISH_TIMEOUT": 5}).producer == {"timeout": 5}
    assert settings(environ={"NSQ_PUBLISH_TIMEOUT": "0.5"}).producer == {"timeout": 0.5}
    with pytest.raises(InvalidOption, match="NSQ_PUBLISH_TIMEOUT=0: it must be above 0"):
        settings({"PUBLISH_TIMEOUT": 0})


def test_settings_that_need_each_other_may_be_set_together():
    nsqds = {"NSQD_TCP_ADDRESSES": ["a:1", "b:1", "c:1"]}
    made = settings({**nsqds, "REPLICAS": 3, "QUORUM": 2}).make_producer(repr)
    assert (made.options.replicas, made.options.quorum) == (3, 2)
    made = settings({**nsqds, "TLS_V1": True, "VERIFY": False}).make_producer(repr)
    assert made.options.verify is False


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"TLS_KEY": "key"}, "NSQ['TLS_KEY']='key': it needs tls_cert"),
        ({"PRODUCER_SNAPPY": True, "PRODUCER_DEFLATE": True}, "NSQ['PRODUCER_DEFLATE']=True: snappy is set too"),
        ({"REPLICAS": 2}, "NSQ['REPLICAS']=2: it is above the number of nsqds, 1"),
    ],
)
def test_a_wrong_combination_is_named_as_it_was_set(given, error):
    made = settings({"NSQD_TCP_ADDRESSES": "a:1", **given}, label="NSQ[{!r}]")
    with pytest.raises(InvalidOption) as caught:
        made.make_producer(repr)
    assert error in str(caught.value)


def test_an_option_of_the_reader_itself_keeps_its_name():
    made = settings({"NSQD_TCP_ADDRESSES": "a:1", "TLS_KEY": "one"})
    with pytest.raises(InvalidOption, match="invalid option tls_key='other'"):
        made.make_reader("t", "c", print, {"tls_key": "other"})
    with pytest.raises(InvalidOption, match="invalid option NSQ_TLS_KEY='one'"):
        made.make_reader("t", "c", print, {})


def test_the_environments_other_names_are_somebody_elses():
    assert settings(environ={"NSQ_SERVICE_HOST": "10.0.0.1", "NSQ_PORT": "tcp://10.0.0.1:4150"}).reader == {}


@pytest.mark.parametrize(
    ("given", "producer", "reader"),
    [
        ({"NSQD": "a:1"}, {"nsqd": ["a:1"]}, {"nsqd": ["a:1"]}),
        ({"LOOKUPD": "l:1, m:2"}, {"lookupd": ["l:1", "m:2"]}, {"lookupd": ["l:1", "m:2"]}),
        ({"NSQD": ["a:1"], "LOOKUPD": ("l:1",)}, {"nsqd": ["a:1"]}, {"lookupd": ["l:1"]}),
        ({"NSQD": "a:1", "LOOKUPD": "l:1", "READER_NSQD": "b:2"}, {"nsqd": ["a:1"]}, {"nsqd": ["b:2"]}),
        ({"NSQD": "a:1", "PRODUCER_LOOKUPD": "l:1"}, {"lookupd": ["l:1"]}, {"nsqd": ["a:1"]}),
        ({"NSQD": "", "LOOKUPD": "l:1"}, {"lookupd": ["l:1"]}, {"lookupd": ["l:1"]}),
    ],
)
def test_addresses_for_each_side(given, producer, reader):
    long = {"NSQD": "NSQD_TCP_ADDRESSES", "LOOKUPD": "LOOKUPD_HTTP_ADDRESSES"}
    names = {key: key.replace("NSQD", long["NSQD"]).replace("LOOKUPD", long["LOOKUPD"]) for key in given}
    made = settings({names[key]: value for key, value in given.items()})

    def short(options):
        return {name.partition("_")[0]: value for name, value in options.items() if value}

    assert (short(made.producer), short(made.reader)) == (producer, reader)


def test_with_no_address_the_error_names_the_setting():
    made = settings({"MAX_IN_FLIGHT": 2})
    for make in (lambda: made.make_producer(repr), lambda: made.make_reader("t", "c", print, {})):
        with pytest.raises(InvalidOption, match=r"NSQ_NSQD_TCP_ADDRESSES.*NSQ_LOOKUPD_HTTP_ADDRESSES"):
            make()


def test_one_nsqd_for_all():
    made = settings({"LOOKUPD_HTTP_ADDRESSES": "l:1", "MAX_IN_FLIGHT": 2}).at("127.0.0.1:9")
    reader = made.make_reader("t", "c", print, {"lookupd_http_addresses": "m:1", "max_in_flight": 4})
    assert made.producer == {"nsqd_tcp_addresses": ["127.0.0.1:9"]}
    assert (repr(made.make_producer(repr)), reader.max_in_flight) == ("<Producer 127.0.0.1:9>", 4)


@pytest.mark.parametrize(
    ("given", "environ", "error"),
    [
        ({"MAX_INFLIGHT": 1}, {}, "NSQ_MAX_INFLIGHT=1: there is no such setting; did you mean NSQ_MAX_IN_FLIGHT"),
        ({"MAX_IN_FLIGHT": -1}, {}, "NSQ_MAX_IN_FLIGHT=-1: it must be at least 0"),
        ({}, {"NSQ_MAX_IN_FLIGHT": "many"}, "NSQ_MAX_IN_FLIGHT='many': it must be a whole number"),
        ({}, {"NSQ_BATCHING": "perhaps"}, "NSQ_BATCHING='perhaps': it must be true or false"),
        ({"RECORD": 1}, {}, "NSQ_RECORD=1: it must be of type bool"),
        ({"STOP_TIMEOUT": True}, {}, "NSQ_STOP_TIMEOUT=True: it must be of type float"),
        ({"STOP_TIMEOUT": -1}, {}, "NSQ_STOP_TIMEOUT=-1: it must be seconds, 0 or more"),
        ({}, {"NSQ_STOP_TIMEOUT": "nan"}, "NSQ_STOP_TIMEOUT=nan: it must be seconds, 0 or more"),
        ({"NSQD_TCP_ADDRESSES": 4150}, {}, "NSQ_NSQD_TCP_ADDRESSES=4150: it must be an address, or a list of"),
        ({"READER_NSQD_TCP_ADDRESSES": 1.5}, {}, "NSQ_READER_NSQD_TCP_ADDRESSES=1.5: it must be an address, or a"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_set(given, environ, error):
    with pytest.raises(InvalidOption) as caught:
        settings(given, environ)
    assert error in str(caught.value)


def test_a_framework_may_spell_names_in_its_own_way():
    with pytest.raises(InvalidOption, match=r"NSQ\['SPAWM'\].*NSQ\['SPAWN'\]"):
        settings({"SPAWM": "thread"}, label="NSQ[{!r}]")


@pytest.mark.parametrize("options", [ReaderOptions, ProducerOptions])
def test_every_default_may_be_set_by_its_text(options):
    for option in fields(options):
        default = getattr(options(), option.name)
        if callable(default) or option.metadata["kind"] is type(None):
            continue
        made = settings(environ={f"NSQ_{option.name.upper()}": str(default)})
        side = made.reader if options is ReaderOptions else made.producer
        assert side[option.name] == default
