"""What clients note arrives in the ledger; and what is read of a history."""

from __future__ import annotations

from pathlib import Path

from tests.faults.ledger import CONFIRMED, NOT_SENT, REFUSED, UNKNOWN, Ledger
from tests.faults.notes import Notes, read_into
from tests.faults.trace import Trace
from tests.support.messages import ID, make_message
from tests.support.scripts import run_script


def test_every_note_arrives(tmp_path: Path) -> None:
    path = tmp_path / "c.notes"
    notes = Notes(str(path))
    for number, outcome in enumerate((CONFIRMED, NOT_SENT, REFUSED, UNKNOWN)):
        notes.publishing(number, 1.0, 2.0, may_repeat=False, defer=0.0)
        notes.ended(number, outcome, 1.5, "E_PUB_FAILED" if outcome == REFUSED else "")
    notes.handled(0, make_message(attempts=3), in_thread=True)
    notes.publishing(4, 1.0, 2.0, may_repeat=False, defer=0.0)
    notes.ended(4, NOT_SENT, 9.0)
    notes.publishing(5, 1.0, 2.0, may_repeat=True, defer=0.5)
    notes.unexpected("two\nlines")
    notes.left({"before": {}, "after": {}})
    ledger = Ledger(2.0)
    ledger.identified((0, 0), "c")
    ledger.delivered(0, (0, 0), ID.encode(), 0, 3, 1.5)
    assert read_into(path, "c", ledger) == (["two | lines"], {"before": {}, "after": {}})
    verdict = ledger.judge()
    assert verdict.violations == {"publish after its deadline": [(4, 7.0)]}
    assert verdict.outcomes == {CONFIRMED: 1, NOT_SENT: 2, REFUSED: 1, UNKNOWN: 1, "killed": 1}
    assert verdict.refusals == {"E_PUB_FAILED": 1}
    assert verdict.handled == 1
    notes.stalled(2.0, 9.0)
    notes.close()
    ledger = Ledger(2.0)
    read_into(path, "c", ledger)
    assert ledger.judge().violations == {"handled without a delivery": [0]}


def test_half_a_line_of_a_killed_client_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c.notes"
    path.write_text("P 1 1.0 2.0 0 0.0\nP 2 1.0")
    ledger = Ledger(2.0)
    assert read_into(path, "c", ledger) == ([], None)
    assert read_into(tmp_path / "none", "c", ledger) == ([], None)
    assert ledger.judge().published == 1


def test_a_forked_child_notes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.notes"
    run_script(
        """
        import os, sys
        from tests.faults.notes import Notes

        notes = Notes(sys.argv[1])
        notes.stalled(1, 2)
        pid = os.fork()
        if not pid:
            notes.stalled(3, 4)
            os._exit(0)
        os.waitpid(pid, 0)
        """,
        str(path),
    )
    assert path.read_text() == "S 1 2\n"


def test_a_history_has_what_concerns_the_message(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace")
    trace.write("published", 0, 7)
    trace.write("published", 0, 8)
    trace.write("delivered", (0, 3), b"the-id", 7)
    trace.write("delivered", (0, 3), b"another", 8)
    trace.write("received", (0, 3), b"the-id")
    trace.write("FIN", (0, 3), b"another")
    trace.write("fault", "of an nsqd")
    trace.write("client-closed", (0, 3))
    trace.write("client-closed", (0, 4))
    notes = tmp_path / "c.notes"
    notes.write_text("P 7 1.0 2.0 0 0.0\nP 8 1.0 2.0 0 0.0\nH 7\n")
    history = [line.split(" ", 1)[1] for line in trace.history(7, [notes, tmp_path / "none"])]
    trace.close()
    assert sorted(history) == sorted(
        [
            "published 0 7",
            "delivered (0, 3) the-id 7",
            "received (0, 3) the-id",
            "fault of an nsqd",
            "client-closed (0, 3)",
            "P 7 1.0 2.0 0 0.0",
            "H 7",
        ]
    )
