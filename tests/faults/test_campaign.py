"""A short run of the campaign; ``make soak`` makes long ones."""

from __future__ import annotations

import pytest

from tests.faults.campaign import Campaign
from tests.faults.report import as_text, problems

#: The same faults in every run of make test, so that a red run is red again.
SEED = 1
#: With the time to begin and to come to rest, a minute.
SECONDS = 35.0
#: The kinds of faults that a run has at least; that time has twice as many, where each fault takes as long as planned.
KINDS = 16


@pytest.mark.faults
@pytest.mark.timeout(1200)  # where others take most of the machine; otherwise it takes a minute
def test_nothing_is_lost_and_the_window_holds(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("seed", None)
    nsq = "real" if request.config.getoption("--nsq") == "real" else "ours"
    result = Campaign(SEED if seed is None else seed, SECONDS, nsq, KINDS).run()
    print(as_text(result))
    assert problems(result) == []
    # Otherwise it has shown nothing.
    assert result.verdict.outcomes["confirmed"] and result.verdict.handled
    assert len(result.faults) >= KINDS
    assert result.resources
