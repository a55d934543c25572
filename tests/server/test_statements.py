"""docs/internals 8: every one of its 58 statements has a test of its number, and a line in docs/statements.rst.

The tests are in the modules of this room that they belong to: ``test_07_...`` is for statement 7, and
``test_38_41_53_...`` for three. Those that fit nowhere else are here.
"""

import ast
import re
import struct
from pathlib import Path

from tests.support.daemons import Kind, running_nsqd
from tests.support.raw import Client, sized

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "statements.rst"
STATEMENTS = range(1, 59)


def numbered_tests() -> dict[str, set[int]]:
    """The tests in this directory that have numbers, with the numbers."""
    found = {}
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := re.match(r"test_((?:\d\d_)+)", node.name)):
                found[node.name] = {int(number) for number in match[1].split("_") if number}
    return found


def test_56_attempts_wrap_at_65535_and_nsqd_never_gives_up(kind: Kind, tmp_path: Path) -> None:
    """A message just before its last attempt, as nsqd itself would have stored it."""
    record = struct.pack(">qH", 1, 65534) + b"0123456789abcdef" + b"tired"
    (tmp_path / "t:c.diskqueue.000000.dat").write_bytes(sized(record))
    (tmp_path / "t:c.diskqueue.meta.dat").write_text(f"1\n0,0\n0,{len(sized(record))}\n")
    (tmp_path / "nsqd.dat").write_text(
        '{"topics":[{"channels":[{"name":"c","paused":false}],"name":"t","paused":false}],"version":"1.3.0"}'
    )
    with running_nsqd(kind, data_path=str(tmp_path)) as nsqd, Client(nsqd.tcp_address) as client:
        client.subscribe("t", rdy=1)
        for attempts in (65535, 0, 1):
            message = client.message()
            assert (message.body, message.attempts) == (b"tired", attempts)
            client.send(b"REQ %b 0\n" % message.id)


def test_every_statement_has_tests_and_a_line_in_the_table_that_names_them() -> None:
    rows = re.findall(r"^   \* - (\d+)\n((?:     .*\n|\n)+)", TABLE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(STATEMENTS)
    named = {(int(number), name) for number, row in rows for name in re.findall(r"``(test_\w+)``", row)}
    assert {number for number, _ in named} == set(STATEMENTS)
    assert named == {(number, name) for name, numbers in numbered_tests().items() for number in numbers}
