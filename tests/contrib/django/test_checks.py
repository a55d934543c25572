"""System checks: each error has an id, a text and a hint; and what commands say of wrong arguments."""

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from gnsq_like.contrib.django import checks, reader, readers

ADDRESS = {"NSQD_TCP_ADDRESSES": "127.0.0.1:4150"}


@pytest.fixture(autouse=True)
def nothing_declared():
    """Each test declares its own readers."""
    before, readers._all[:] = list(readers._all), []
    yield
    readers._all[:] = before


def found(**settings):
    """The messages of all checks of ours: (id, text, hint)."""
    with override_settings(NSQ={**ADDRESS, **settings}):
        return [(each.id, each.msg, each.hint) for each in run_checks() if each.id.startswith("gnsq_like.")]


def declare(*arguments, name="first", **options):
    def handler(message):
        pass

    return reader(*(arguments or ("orders", "mail")), name=name, **options)(handler)


def test_right_settings_and_readers_pass():
    declare(max_in_flight=50)
    declare("orders", "books", name="second", batch={"size": 10}, spawn="greenlet")
    assert found(LOOKUPD_HTTP_ADDRESSES=["127.0.0.1:4161"], MAX_IN_FLIGHT=1, PRODUCER_TIMEOUT=2.5) == []


@pytest.mark.parametrize(
    ("settings", "text", "hint"),
    [
        ({"MAX_IN_FLIGTH": 5}, 'NSQ["MAX_IN_FLIGTH"]: there is no such setting', 'Did you mean NSQ["MAX_IN_FLIGHT"]'),
        ({"zebra": 5}, 'NSQ["zebra"]: there is no such setting', "in capitals"),
        ({"MAX_IN_FLIGHT": "many"}, 'NSQ["MAX_IN_FLIGHT"]: it must be a whole number', "'many'"),
        ({"READER_MAX_ATTEMPTS": -1}, 'NSQ["READER_MAX_ATTEMPTS"]: it must be at least 0', "-1"),
        ({"TIMEOUT": None}, 'NSQ["TIMEOUT"]: it must be of type number', "None"),
        ({"NSQD_TCP_ADDRESSES": 4150}, 'NSQ["NSQD_TCP_ADDRESSES"]: it must be an address', "4150"),
        ({"STOP_TIMEOUT": -1}, 'NSQ["STOP_TIMEOUT"]: it must be seconds, 0 or more', "-1"),
        ({"RECORD": 3}, 'NSQ["RECORD"]: it must be of type bool', "3"),
        ({"SPAWN": "process"}, 'NSQ["SPAWN"]: it must be one of greenlet, thread', "'process'"),
        ({"NSQD_TCP_ADDRESSES": "nowhere"}, "invalid address 'nowhere'", 'Look at NSQ["NSQD_TCP_ADDRESSES"].'),
        ({"LOOKUPD_HTTP_ADDRESSES": ["ftp://x"]}, "ftp://x", 'Look at NSQ["LOOKUPD_HTTP_ADDRESSES"].'),
        ({"PRODUCER_REPLICAS": 2}, 'invalid option NSQ["PRODUCER_REPLICAS"]=2', "NSQ"),
    ],
)
def test_a_wrong_setting(settings, text, hint):
    [(id_, msg, said)] = found(**settings)
    assert id_ == "gnsq_like.E002"
    assert text in msg
    assert hint in said


def test_every_wrong_key_is_reported_at_once():
    assert len(found(MAX_IN_FLIGTH=1, MAX_ATTEMPTS="x", NSQD_TCP_ADRESSES="127.0.0.1:4150")) == 3


def test_a_setting_that_is_not_a_dictionary():
    with override_settings(NSQ="127.0.0.1:4150"):
        [error] = checks.check_settings()
    assert (error.id, error.msg) == ("gnsq_like.E001", "NSQ must be a dictionary, not '127.0.0.1:4150'")


def test_no_address():
    with override_settings():
        from django.conf import settings

        del settings.NSQ
        [error] = checks.check_settings()
    assert error.id == "gnsq_like.E003"
    assert "NSQD_TCP_ADDRESSES" in error.hint


def test_recording_needs_no_address():
    declare()
    with override_settings(NSQ={"RECORD": True}):
        assert checks.check_settings() == checks.check_readers() == []


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("two words", "mail"), {}, "invalid topic name 'two words'"),
        (("orders", ""), {}, "invalid channel name ''"),
        (("orders", "mail"), {"max_in_fligth": 3}, "there is no such option; did you mean max_in_flight?\n"),
        (("orders", "mail"), {"max_in_flight": "3"}, "it must be of type int"),
        (("orders", "mail"), {"batch": {"size": 0}}, "invalid option size=0"),
        (("orders", "mail"), {"batch": {"sise": 1}}, "a Batch has no argument 'sise'; did you mean size?"),
        (("orders", "mail"), {"batch": 500}, "batch=500: it must be the arguments of a Batch"),
        (("orders", "mail"), {"nsqd_tcp_addresses": "nowhere"}, "invalid address 'nowhere'"),
    ],
)
def test_a_wrong_reader(arguments, options, text):
    declare(*arguments, **options)
    [(id_, msg, hint)] = found()
    assert id_ == "gnsq_like.E004"
    assert msg.startswith("Reader 'first': ")
    assert text in msg + "\n"
    assert f"{__name__}.declare.<locals>.handler" in hint


def test_two_readers_of_one_name():
    declare()
    declare("orders", "books")
    [(id_, msg, hint)] = found()
    assert id_ == "gnsq_like.E005"
    assert msg.startswith("2 readers have the name 'first': ")
    assert "name=" in hint


def test_greenlets_of_one_thread_would_share_a_database_connection():
    declare(spawn="greenlet", max_in_flight=3)
    declare(name="second", spawn="greenlet", max_in_flight=50, concurrency=1)
    declare(name="third", max_in_flight=50)
    [(id_, msg, hint)] = found()
    assert id_ == "gnsq_like.E006"
    assert msg.startswith("Reader 'first' would run 3 handlers at once")
    assert 'spawn="thread"' in hint and "patch_all" in hint and "concurrency=1" in hint


def test_two_readers_in_greenlets_are_for_two_processes():
    declare(spawn="greenlet")
    declare(name="second", spawn="greenlet")
    [(id_, msg, _)] = found()
    assert id_ == "gnsq_like.W001"
    assert msg.startswith("Readers 'first', 'second' run their handlers in greenlets")


def test_the_settings_may_ask_for_greenlets_too():
    declare()
    assert [each[0] for each in found(SPAWN="greenlet", MAX_IN_FLIGHT=2)] == ["gnsq_like.E006"]


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (["nsq_run", "boook"], {}, "there is no reader 'boook'; there are first"),
        (["nsq_run", "boook", "--processes", "2"], {}, "there is no reader 'boook'"),
        (["nsq_run", "--processes", "0"], {}, "invalid option processes=0: it must be 1 or more"),
        (["nsq_run", "--max-memory", "much"], {}, "it must be a size such as 300M or 1.5G"),
        (["nsq_run", "--relay", "--processes", "2"], {}, "--relay needs a single process"),
        (["nsq_run", "--health", "nowhere"], {}, "invalid address 'nowhere': the host or the port is missing"),
        (["nsq_run"], {"NSQD_TCP_ADDRESSES": ""}, "(gnsq_like.E003)"),
        (
            ["nsq_run"],
            {"SPAWN": "greenlet", "MAX_IN_FLIGHT": 2},
            "(gnsq_like.E006) Reader 'first' would run 2 handlers",
        ),
        (
            ["nsq_run", "--skip-checks"],
            {"SPAWN": "greenlet", "MAX_IN_FLIGHT": 2},
            "Handlers of first would share one database",
        ),
        (["nsq_relay", "--database", "none"], {}, "There is no database 'none' in DATABASES."),
        (["nsq_relay", "--health", "nowhere"], {}, "invalid address 'nowhere'"),
    ],
)
def test_commands_say_what_is_wrong(arguments, settings, text):
    declare()
    # Without the option, call_command would skip the checks, which a command line does not.
    checked = {} if "--skip-checks" in arguments or arguments[0] != "nsq_run" else {"skip_checks": False}
    with override_settings(NSQ={**ADDRESS, **settings}), pytest.raises(CommandError) as caught:
        call_command(*arguments, **checked)
    assert text in str(caught.value)
