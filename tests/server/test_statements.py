"""Each statement of docs/internals 8 has a test with its number.

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
SUBTLETIES = HERE.parents[1] / "docs" / "internals" / "subtleties.rst"


def numbers_of_tests() -> set[int]:
    """The numbers in the names of the tests in this directory."""
    found = set()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := re.match(r"test_((?:\d\d_)+)", node.name)):
                found |= {int(number) for number in match[1].split("_") if number}
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


def test_every_statement_has_a_test() -> None:
    statements = {int(number) for number in re.findall(r"^8\.(\d+) \(", SUBTLETIES.read_text(), re.MULTILINE)}
    assert len(statements) == 58
    assert numbers_of_tests() == statements
