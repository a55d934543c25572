"""Routing, parameters and errors of the daemons' HTTP servers."""

import pytest

from gnsq_like.server.shared.wsgi import Problem, parse_query


def test_query_strings_as_go_takes_them_apart() -> None:
    assert parse_query("") == {}
    assert parse_query("a=1&b&a=2&&c=x%23y+z=&=e") == {"a": "1", "b": "", "c": "x#y z=", "": "e"}
    for query in ("a=%zz", "a=%4", "%=1", "a=1;b=2"):
        with pytest.raises(Problem):
            parse_query(query)
