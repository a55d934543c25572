"""Routing, parameters and errors of the daemons' HTTP servers."""

from typing import Any

import pytest

from gnsq_like.httpd.wsgi import HTTPProblem, in_right_case, parse_query, respond, rule_of


def test_query_strings_as_go_takes_them_apart() -> None:
    assert parse_query("") == {}
    assert parse_query("a=1&b&a=2&&c=x%23y+z=&=e") == {"a": "1", "b": "", "c": "x#y z=", "": "e"}
    for query in ("a=%zz", "a=%4", "%=1", "a=1;b=2"):
        with pytest.raises(HTTPProblem):
            parse_query(query)


RULES = ["/ping", "/config/<name>", "/topics/<topic>/<channel>"]


def test_a_path_matches_a_rule_word_by_word() -> None:
    assert rule_of("/ping", RULES) == "/ping"
    assert rule_of("/topics/A/b", RULES) == "/topics/<topic>/<channel>"
    for path in ("/Ping", "/ping/", "/config/", "/config", "/topics/a", "/"):
        assert rule_of(path, RULES) == ""


def test_the_words_of_a_rule_are_put_into_their_case_and_names_are_left() -> None:
    assert in_right_case("/PING", RULES) == "/ping"
    assert in_right_case("/Topics/A/b", RULES) == "/topics/A/b"
    assert in_right_case("/Config/", RULES) == ""


def test_what_comes_of_a_function_is_nsqs_response() -> None:
    def found(method: str, answer: Any = None) -> tuple[int, dict[str, str], bytes]:
        def call(function: str) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        status, headers, body = respond({"GET": "function"}, method, call, "/path")
        return status, dict(headers), body

    nsq = {"X-Nsq-Content-Type": "nsq; version=1.0"}
    json, text = {"Content-Type": "application/json; charset=utf-8"}, {"Content-Type": "text/plain; charset=utf-8"}
    assert found("GET") == found("GET", "") == (200, nsq, b"")
    assert found("GET", "OK") == (200, nsq | text, b"OK")
    assert found("GET", []) == (200, nsq | json, b"[]")
    assert found("GET", HTTPProblem(404, "NO")) == (404, nsq | json, b'{"message":"NO"}')
    assert found("GET", HTTPProblem(500, "NO", plain=True)) == (500, text, b"NO")
    assert found("OPTIONS") == (200, {"Allow": "GET, OPTIONS"}, b"")
    assert found("POST") == (405, nsq | json | {"Allow": "GET, OPTIONS"}, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert respond({}, "GET", str, "/path")[0] == 404


def test_a_fault_of_ours_is_logged_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    status, _, body = respond({"GET": 0}, "GET", lambda function: 1 / function, "/path")
    assert (status, body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert "/path failed" in caplog.text
