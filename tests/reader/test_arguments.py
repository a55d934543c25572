"""The keyword arguments of a Reader as a type are those that it takes."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import get_type_hints

from gnsq_like import Reader, ReaderArguments
from gnsq_like.options import ReaderOptionsDict


def test_the_type_has_what_a_reader_takes() -> None:
    parameters = signature(Reader.__init__).parameters.values()
    taken = {each.name: each.annotation for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    own = set(ReaderArguments.__annotations__) - set(ReaderOptionsDict.__annotations__)
    assert own == set(taken)
    hints = get_type_hints(Reader.__init__)
    assert {name: get_type_hints(ReaderArguments)[name] for name in own} == {name: hints[name] for name in own}
