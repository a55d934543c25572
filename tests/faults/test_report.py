"""Whatever is wrong in a run is reported, with its figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.faults.campaign import Result
from tests.faults.ledger import Verdict
from tests.faults.report import as_text, problems
from tests.faults.resources import kept
from tests.faults.window import Excess, Window


def held(**changed: Any) -> dict[str, Any]:
    return {"descriptors": 9, "threads": 2, "greenlets": 4, "objects": {"gnsq_like.x.Thing": 1}, **changed}


def result(verdict: Verdict | None = None) -> Result:
    return Result(7, "ours", 60.0, Counter({"nsqd: kill": 3}), verdict or Verdict(), Window(2.0))


def test_a_run_without_faults_of_ours() -> None:
    fine = result()
    fine.resources["c0.0"] = {"before": held(), "after": held(threads=12, greenlets=3)}
    assert problems(fine) == []
    assert as_text(fine).endswith("nothing wrong")
    assert "seed 7, 60 s of faults, ours daemons" in as_text(fine)


def test_every_violation_is_named() -> None:
    bad = result(
        Verdict(
            lost=[1],
            arrived_unsent=[2],
            repeated=[3],
            wrongly_refused=[(6, "E_INVALID")],
            unexplained=[4],
            late=[(5, 1.5)],
        )
    )
    bad.window.excesses.append(Excess("c", 1.0, 3, 2, 0))
    bad.window.beyond_rdy.append((0, 1.0, 1))
    bad.errors.append("something else")
    found = problems(bad)
    assert [text.partition(":")[0] for text in found] == [
        "1 lost",
        "1 arrived although not sent",
        "1 taken twice",
        "1 refused without a cause",
        "1 handled again without a cause",
        "1 publish after its deadline",
        "1 above max_in_flight",
        "1 sent beyond RDY",
        "something else",
    ]
    assert all(f"WRONG: {text}" in as_text(bad) for text in found)


def test_what_a_client_keeps() -> None:
    assert kept(held(), held()) == []
    assert kept(held(), held(descriptors=10)) == ["10 descriptors, 9 before"]
    assert kept(held(), held(greenlets=5)) == ["5 greenlets, 4 before"]
    assert kept(held(), held(threads=13)) == ["13 threads, 2 before"]
    assert kept(held(), held(objects={"gnsq_like.x.Thing": 3})) == ["2 more gnsq_like.x.Thing"]
